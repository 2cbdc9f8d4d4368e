"""Who owns a state folder: one supervisor, by a lease that it renews every second.

The lock is held for moments only, never for a supervisor's life: one that is stopped
(SIGSTOP, a debugger, a laptop's lid) could be neither waited for nor replaced. Whoever finds
a fresh lease of a living process steps back; an expired one is taken over under a higher
epoch, and the old owner, when it wakes, sees that before it touches anything and ends.
"""

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NoReturn

import msgspec
import psutil

from bramley.common.lease import LEASE_TTL_S, Lease, read_lease
from bramley.common.logs import facts
from bramley.deploy.state import StateFolder, replace_file

log = logging.getLogger(__name__)

EXIT_FENCED: Final = 4
_RENEW_EVERY_S = 1.0
_LOCK_POLL_S = 0.005
_LOCK_PATIENCE_S = 2 * LEASE_TTL_S  # it is held for milliseconds, as a rule


class Owned(Exception):
    """The state folder cannot be had; the message says whose it is."""


def exit_fenced(why: str) -> NoReturn:
    """End this process at once: whatever it would clean up is not its own by now."""
    log.critical("%s; ending without it, and leaving the children to the next `bramley up`", why)
    os._exit(EXIT_FENCED)


class Ownership:
    """This process's hold on a state folder. Made by ``acquire``."""

    def __init__(
        self, state: StateFolder, epoch: int, on_fenced: Callable[[str], NoReturn] = exit_fenced
    ) -> None:
        self.epoch: Final = epoch
        self._state = state
        self._on_fenced = on_fenced
        self._mutex = asyncio.Lock()  # flock would make two tasks of one process wait in a circle

    @asynccontextmanager
    async def acting(self) -> AsyncGenerator[None]:
        """Hold the lock for an action on a process or a file; not to be nested.

        Does not return if the lease is another's: see ``exit_fenced``.
        """
        async with self._mutex:
            fd = await self._locked_lease()
            try:
                yield
            finally:
                os.close(fd)

    async def _locked_lease(self) -> int:
        try:
            fd = await _lock(self._state.lock)
            lease = read_lease(self._state.lease)
        except OSError as error:  # somebody moved the folder, or removed it
            self._on_fenced(f"the state folder is gone: {error}")
        if lease is None:
            self._on_fenced(f"the lease in {self._state.path} is gone")
        if lease.epoch != self.epoch:
            self._on_fenced(f"process {lease.pid} has taken over {self._state.path}")
        return fd

    async def keep(self) -> NoReturn:
        """Renew the lease for ever."""
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            async with self.acting():
                try:
                    _write(self._state.lease, self.epoch)
                except OSError as error:
                    self._on_fenced(f"the lease cannot be renewed: {error}")

    async def release(self) -> None:
        """Give the folder up, in good order."""
        async with self.acting():
            self._state.lease.unlink()
            self._state.lock.unlink()


async def acquire(state: StateFolder) -> Ownership:
    """Become the owner.

    Returns:
        The hold, under a higher epoch than any before.

    Raises:
        Owned: a living supervisor renews its lease.
    """
    while True:
        try:
            async with asyncio.timeout(_LOCK_PATIENCE_S), _locked(state.lock):
                return Ownership(state, _take(state))
        except TimeoutError:
            _kill_stuck_owner(state)


def _take(state: StateFolder) -> int:
    lease = read_lease(state.lease)
    if lease is not None and _is_alive(lease.pid):
        if lease.is_fresh(time.monotonic()):
            raise Owned(f"{state.path} belongs to a running supervisor, process {lease.pid}")
        log.warning("taking over: the lease has expired", extra=facts(owner=lease.pid))
    epoch = state.next_epoch(at_least=lease.epoch + 1 if lease else 0)
    _write(state.lease, epoch)
    return epoch


def _write(path: Path, epoch: int) -> None:
    me = psutil.Process()
    lease = Lease(epoch=epoch, pid=me.pid, start_time=me.create_time(), renewed_s=time.monotonic())
    content = msgspec.json.encode(lease)
    try:
        replace_file(path, content)
    except OSError as error:
        # A full disk must not end the children that look at the lease: overwriting takes no room.
        log.error("cannot renew the lease in a new file", extra=facts(error=error))  # noqa: TRY400
        with path.open("r+b") as file:
            file.write(content.ljust(path.stat().st_size))


def _is_alive(pid: int) -> bool:
    # Its start time is not asked for: Linux reckons that from the wall clock, so that it moves
    # when that is set; and a lease is not fresh for as long as it takes a pid to come round.
    if pid == os.getpid():  # a container that starts again gives out the same pids
        return False
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _kill_stuck_owner(state: StateFolder) -> None:
    """Free a lock whose holder was stopped while it held it; its children do not mind.

    Raises:
        Owned: the holder is not the owner of an expired lease.
    """
    lease = read_lease(state.lease)
    if lease is None or lease.is_fresh(time.monotonic()):
        raise Owned(f"{state.lock} is held by a process that does not let go")
    try:
        owner = psutil.Process(lease.pid)
        if abs(owner.create_time() - lease.start_time) > 1.0:
            raise Owned(f"{state.lock} is held, but not by the last owner, process {lease.pid}")
        owner.kill()
    except psutil.NoSuchProcess:
        return
    log.warning("killed a stopped supervisor that held the lock", extra=facts(owner=lease.pid))


@asynccontextmanager
async def _locked(path: Path) -> AsyncGenerator[None]:
    fd = await _lock(path)
    try:
        yield
    finally:
        os.close(fd)


async def _lock(path: Path) -> int:
    while (fd := _try_lock(path)) is None:  # noqa: ASYNC110 another process holds it
        await asyncio.sleep(_LOCK_POLL_S)
    return fd


def _try_lock(path: Path) -> int | None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), path.stat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)  # held, or removed by one who left
    return None
