"""One supervisor's life: own the state folder, keep its node, leave nothing behind."""

import asyncio
import logging
import shutil
import signal

from bramley.common.logs import facts
from bramley.deploy.changes import guarded
from bramley.deploy.keeper import Keeper
from bramley.deploy.lease import acquire
from bramley.deploy.node import serve
from bramley.deploy.settings import ClusterSettings
from bramley.deploy.state import StateFolder, make_run_dir

log = logging.getLogger(__name__)


async def up(settings: ClusterSettings, state: StateFolder) -> str:
    """Run a node until a signal ends it.

    Returns:
        Why it could not run, or nothing.

    Raises:
        Owned: another supervisor does.
        OSError: a file or a socket that it cannot do without.
    """
    ownership = await acquire(state)
    tasks: list[asyncio.Task[None]] = [guarded(ownership.keep())]
    previous = state.read_node()
    run_dir = make_run_dir(previous.run_dir if previous else None)
    keeper = Keeper(settings, state, ownership, run_dir)
    _obey_signals(keeper)
    await keeper.adopt(previous)
    server = await serve(keeper, ownership.epoch)
    log.info("up", extra=facts(state=state.path, node=keeper.target, epoch=ownership.epoch))
    tasks.append(guarded(keeper.sweep_forever()))
    await guarded(keeper.run())
    await server.stop(None)
    for task in tasks:  # or one of them finds the lease gone and takes that for a defeat
        task.cancel()
    await asyncio.wait(tasks)
    async with ownership.acting():
        state.clear()
        shutil.rmtree(run_dir, ignore_errors=True)
    await ownership.release()
    log.info("down")
    return keeper.failure


def _obey_signals(keeper: Keeper) -> None:
    signals: list[signal.Signals] = []

    def obey(number: signal.Signals) -> None:
        at_once = bool(signals) and number is signal.SIGINT
        signals.append(number)
        log.info("stopping", extra=facts(signal=number.name, at_once=at_once))
        keeper.stop(at_once=at_once)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, obey, signal.SIGTERM)
    loop.add_signal_handler(signal.SIGINT, obey, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup's wish counts
        loop.add_signal_handler(signal.SIGHUP, obey, signal.SIGHUP)
