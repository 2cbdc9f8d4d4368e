"""The router's process: ``python -m bramley.router --child JSON --settings FILE``."""

import logging

from bramley.common.child import Child, ChildContext
from bramley.common.logs import facts
from bramley.common.main import keep_what_is_here, leave, run_child
from bramley.router.process import Router
from bramley.router.settings import RouterSettings

log = logging.getLogger(__name__)


async def serve(context: ChildContext, settings: RouterSettings) -> None:
    """Serve until this process should end."""
    child = Child(context)
    router = Router(settings, context.socket, context.epoch)
    async with router.serve():
        keep_what_is_here()
        child.ready(router.addresses)
        log.info("serving", extra=facts(**router.addresses))
        log.info("stopping", extra=facts(reason=await child.until_stopped()))
        await router.drain()


if __name__ == "__main__":
    leave(run_child("router", RouterSettings, serve))
