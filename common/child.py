"""A process's side of its bond with the supervisor: hand-shake, owner watch, stop signal.

A child is told on its command line who it is (``--child JSON``). It says once, on a pipe,
which addresses it bound. It holds the reading end of a second pipe, which ends when its
supervisor dies; from then on the lease file in the state folder tells whether another
supervisor owns the node. Without an owner for ``orphan_grace_s`` it stops by itself.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import msgspec

from bramley.common.errors import SettingsError
from bramley.common.lease import read_lease
from bramley.common.logs import Format


class ChildContext(msgspec.Struct, frozen=True, kw_only=True):
    """Who a child is, as its supervisor tells it.

    Attributes:
        epoch: of this incarnation.
        run_dir: 0700 folder with a short path, for sockets.
        lease_file: the supervisor's lease.
        ready_fd: writing end for the hand-shake.
        owner_fd: reading end that ends with the supervisor.
        log_format: of the lines that it writes.
    """

    role: str
    name: str
    epoch: int
    run_dir: str
    lease_file: str
    ready_fd: int
    owner_fd: int
    orphan_grace_s: float = 120.0
    log_format: Format = "text"

    @property
    def socket(self) -> str:
        """The gRPC target of this incarnation's own unix socket."""
        return f"unix:{self.run_dir}/{self.role}-{self.epoch}.sock"

    @property
    def work_file(self) -> Path:
        """Where this incarnation says since when it does its work, on the monotonic clock."""
        return Path(self.run_dir, f"{self.role}-{self.epoch}.works")

    def argument(self) -> str:
        """Encode as the value of ``--child``."""
        return msgspec.json.encode(self).decode()


def parse_context(argument: str) -> ChildContext:
    """Decode the value of ``--child``.

    Returns:
        Who this process is.

    Raises:
        SettingsError: it is not what a supervisor writes.
    """
    try:
        return msgspec.json.decode(argument, type=ChildContext)
    except msgspec.DecodeError as error:
        raise SettingsError("--child", str(error)) from error


class Child:
    """Runs the bond. Make one inside the event loop, before anything is bound."""

    def __init__(self, context: ChildContext) -> None:
        self._context = context
        self._stop = asyncio.Event()
        self.stop_reason = ""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop, number.name)
        self._watch = loop.create_task(self._watch_owner())

    def ready(self, addresses: dict[str, str]) -> None:
        """Tell the supervisor, once, that every server answers at ``addresses``."""
        with contextlib.suppress(BrokenPipeError):  # it died meanwhile; the watch will tell
            os.write(self._context.ready_fd, json.dumps(addresses).encode() + b"\n")
        os.close(self._context.ready_fd)

    def works(self) -> None:
        """Tell that the work has begun for which this process was started: a model is loaded.

        A crash before that is one of its start, however long that took.
        """
        with contextlib.suppress(OSError):  # no room: a later crash will be taken for one
            self._context.work_file.write_text(repr(time.monotonic()))

    def stop(self, reason: str) -> None:
        """Ask this process to end in good order."""
        self.stop_reason = self.stop_reason or reason
        self._stop.set()

    async def until_stopped(self) -> str:
        """Wait until this process should end, and return why."""
        await self._stop.wait()
        self._watch.cancel()
        return self.stop_reason

    async def _watch_owner(self) -> None:
        await _end_of_file(self._context.owner_fd)
        owned_s = time.monotonic()
        while (now_s := time.monotonic()) - owned_s < self._context.orphan_grace_s:
            if _is_owned(Path(self._context.lease_file), now_s):
                owned_s = now_s
            await asyncio.sleep(0.5)
        self.stop("orphaned")


def _is_owned(lease_file: Path, now_s: float) -> bool:
    try:
        lease = read_lease(lease_file)
    except OSError:  # no news; the next look may tell
        return False
    return lease is not None and lease.is_fresh(now_s)


async def _end_of_file(fd: int) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def readable() -> None:
        if not ended.done() and not os.read(fd, 1):
            ended.set_result(None)

    os.set_blocking(fd, False)
    loop.add_reader(fd, readable)
    try:
        await ended
    finally:
        loop.remove_reader(fd)
        os.close(fd)
