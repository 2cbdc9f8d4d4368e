"""The router's process: ``python -m bramley.router --child JSON --settings FILE``."""

import argparse
import asyncio
import importlib
import importlib.util
import logging
import sys
from pathlib import Path

from bramley.common import logs
from bramley.common.child import Child, ChildContext, parse_context
from bramley.common.errors import SettingsError
from bramley.common.settings import read_json
from bramley.router.process import Router
from bramley.router.settings import RouterSettings

log = logging.getLogger(__name__)


async def run(context: ChildContext, settings: RouterSettings) -> None:
    """Serve until this process should end."""
    child = Child(context)
    router = Router(settings, context.socket, context.epoch)
    async with router.serve():
        child.ready(router.addresses)
        log.info("serving", extra=logs.facts(**router.addresses))
        reason = await child.until_stopped()
        log.info("stopping", extra=logs.facts(reason=reason))
        await router.drain()


def main() -> int:
    """Parse the arguments and run.

    Returns:
        The exit code: 2 for a fault of the settings or an address that is taken.
    """
    parser = argparse.ArgumentParser(prog="python -m bramley.router", description=__doc__)
    parser.add_argument("--child", required=True, help="who this process is, by its supervisor")
    parser.add_argument("--settings", required=True, type=Path, help="RouterSettings as JSON")
    arguments = parser.parse_args()
    logs.setup("router")
    try:
        context = parse_context(arguments.child)
        settings = read_json(arguments.settings, RouterSettings)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(run(context, settings))
    except (SettingsError, OSError) as error:
        log.error("%s", error)  # noqa: TRY400  the message says it all
        return 2
    return 0


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    if importlib.util.find_spec("uvloop") is None:
        return None
    return importlib.import_module("uvloop").Loop


if __name__ == "__main__":
    sys.exit(main())
