"""The cache store's process: ``python -m bramley.cachestore --child JSON --settings FILE``."""

import argparse
import logging
import sys
from pathlib import Path

import uvloop

from bramley.cachestore.process import StoreProcess, publish
from bramley.cachestore.settings import StoreSettings
from bramley.common import logs
from bramley.common.child import Child, ChildContext, parse_context
from bramley.common.errors import SettingsError
from bramley.common.settings import read_json

log = logging.getLogger(__name__)


async def run(context: ChildContext, settings: StoreSettings) -> None:
    """Serve until this process should end."""
    child = Child(context)
    store = StoreProcess(settings, context.socket, context.epoch)
    async with store.serve():
        publish(store.addresses)
        child.ready(store.addresses)
        log.info("serving", extra=logs.facts(**store.addresses))
        reason = await child.until_stopped()
        log.info("stopping", extra=logs.facts(reason=reason))


def main() -> int:
    """Parse the arguments and run.

    Returns:
        The exit code: 2 for a fault of the settings or an address that is taken.
    """
    parser = argparse.ArgumentParser(prog="python -m bramley.cachestore", description=__doc__)
    parser.add_argument("--child", required=True, help="who this process is, by its supervisor")
    parser.add_argument("--settings", required=True, type=Path, help="StoreSettings as JSON")
    arguments = parser.parse_args()
    logs.setup("store")
    try:
        context = parse_context(arguments.child)
        settings = read_json(arguments.settings, StoreSettings)
        uvloop.run(run(context, settings))
    except (SettingsError, OSError) as error:
        log.error("%s", error)  # noqa: TRY400  the message says it all
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
