"""``python -m bramley.deploy``: the supervisor of a node, in the foreground.

Exit codes: 0 it was told to stop, 1 it could not run, 2 a setting or the state folder is
wrong, 3 another supervisor owns the folder, 4 the folder is lost: taken over, moved or removed.
"""

import argparse
import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from typing import Final

from bramley.common import logs
from bramley.common.errors import SettingsError
from bramley.common.main import leave
from bramley.deploy.keeper import ROUTER
from bramley.deploy.lease import Owned
from bramley.deploy.settings import ClusterSettings, load
from bramley.deploy.state import StateFolder
from bramley.deploy.up import up
from bramley.router.settings import RouterSettings

EXIT_FAILED: Final = 1
EXIT_SETTINGS: Final = 2
EXIT_OWNED: Final = 3


def main() -> int:
    """Run until stopped, and return the exit code."""
    arguments = _parser().parse_args()
    logs.setup("supervisor")
    try:
        if arguments.stop:
            state = StateFolder(arguments.state_dir)
            read = partial(_settings_of_what_is_left, state)
            settings = read()
        else:
            folder = arguments.state_dir.resolve()
            read = partial(load, arguments.cluster, _overrides(arguments), folder)
            settings = read()
            state = StateFolder(arguments.state_dir)
        logs.setup("supervisor", settings.logs.format)
        work = up(settings, state, read, is_detached=arguments.detached, is_stop=arguments.stop)
        failure = asyncio.run(work)
    except SettingsError as error:
        return _say(str(error), EXIT_SETTINGS)
    except Owned as error:
        return _say(str(error), EXIT_OWNED)
    except OSError as error:
        where = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _say(where, EXIT_FAILED)
    return _say(failure, EXIT_FAILED) if failure else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bramley.deploy", description=__doc__)
    parser.add_argument("cluster", type=Path, nargs="?", metavar="CLUSTER.toml")
    parser.add_argument("--state-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--stop", action="store_true", help="end what a dead supervisor left, in good order"
    )
    parser.add_argument(
        "--detached", action="store_true", help="write to a log, once the folder is owned"
    )
    parser.add_argument("--grpc", metavar="ADDRESS", help="where clients call")
    parser.add_argument("--http", metavar="ADDRESS", help="where Prometheus scrapes")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    return parser


def _overrides(arguments: argparse.Namespace) -> list[str]:
    overrides: list[str] = list(arguments.overrides)
    for key in ("grpc", "http"):
        address = getattr(arguments, key)
        if address is not None:
            overrides.append(f"router.{key}={json.dumps(address)}")  # JSON's strings are TOML's
    return overrides


def _settings_of_what_is_left(state: StateFolder) -> ClusterSettings:
    """Read what the router was given: how long it may drain."""
    router = state.read_settings(ROUTER, RouterSettings) or RouterSettings()
    return ClusterSettings(router=router)


def _say(sentence: str, code: int) -> int:
    print(f"bramley: {sentence}", file=sys.stderr, flush=True)  # noqa: T201
    return code


if __name__ == "__main__":
    leave(main())
