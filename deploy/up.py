"""One supervisor's life: own the state folder, keep its node, leave nothing behind."""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from bramley.common.logs import facts
from bramley.deploy.changes import guarded
from bramley.deploy.keeper import Keeper
from bramley.deploy.lease import acquire
from bramley.deploy.node import NodeServer
from bramley.deploy.settings import ClusterSettings
from bramley.deploy.state import StateFolder, make_run_dir
from bramley.deploy.tell import tell

log = logging.getLogger(__name__)


async def up(
    settings: ClusterSettings,
    state: StateFolder,
    read: Callable[[], ClusterSettings],
    *,
    is_detached: bool = False,
    is_stop: bool = False,
) -> str:
    """Run a node until a signal ends it.

    Args:
        settings: of the cluster.
        state: its folder.
        read: reads the settings again.
        is_detached: what is said goes to a log as soon as the folder is owned.
        is_stop: adopt what another supervisor left, only to stop it in good order.

    Returns:
        Why it could not run, or nothing.

    Raises:
        Owned: another supervisor does.
        OSError: a file or a socket that it cannot do without.
    """
    ownership = await acquire(state)
    if is_detached:
        _write_to(state.own_log)
    tasks: list[asyncio.Task[None]] = [guarded(ownership.keep())]
    previous = state.read_node()
    run_dir = make_run_dir(previous.run_dir if previous else None)
    keeper = Keeper(settings, state, ownership, run_dir, read)
    _obey_signals(keeper)
    await keeper.adopt(previous)
    if is_stop:
        keeper.stop()
    server = NodeServer(keeper, ownership.epoch)
    await server.start()
    log.info("up", extra=facts(state=state.path, node=keeper.target, epoch=ownership.epoch))
    tasks.append(guarded(_look_after(keeper, server)))
    if not is_detached:
        tasks.append(guarded(tell(keeper)))
    await guarded(keeper.run())
    await server.stop()
    for task in tasks:  # or one of them finds the lease gone and takes that for a defeat
        task.cancel()
    await asyncio.wait(tasks)
    async with ownership.acting():
        state.clear()
        shutil.rmtree(run_dir, ignore_errors=True)
    await ownership.release()
    log.info("down")
    return keeper.failure


def _write_to(file: Path) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(fd, standard)
    os.close(fd)


async def _look_after(keeper: Keeper, server: NodeServer) -> None:
    try:
        while True:
            await asyncio.sleep(keeper.sweep_every_s)
            await keeper.sweep()
            await server.mend()
    except OSError as error:
        keeper.fail(f"the folder of its sockets is gone: {error}")


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
