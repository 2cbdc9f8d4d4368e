"""The cache store's process: ``python -m bramley.cachestore --child JSON --settings FILE``."""

import logging

from bramley.cachestore.process import StoreProcess, publish
from bramley.cachestore.settings import StoreSettings
from bramley.common import logs
from bramley.common.child import Child, ChildContext
from bramley.common.main import leave, run_child

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


if __name__ == "__main__":
    leave(run_child("store", StoreSettings, run))
