"""Starts a child as its supervisor does, for benchmarks and tests: its pipes and hand-shake."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bramley.common.child import ChildContext


@dataclass
class Spawned:
    """A child.

    Attributes:
        addresses: where it answers, as it told; empty if it ended without a word.
    """

    process: asyncio.subprocess.Process
    addresses: dict[str, str]
    _owner_fd: int

    async def end(self, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal, unless it has ended, and wait for the end: its exit code."""
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await self.process.wait()
        os.close(self._owner_fd)
        return code


def context_of(role: str, name: str, folder: str, epoch: int = 1) -> ChildContext:
    """Say who a child is; its descriptors come with ``spawn``."""
    return ChildContext(
        role=role,
        name=name,
        epoch=epoch,
        run_dir=folder,
        lease_file=f"{folder}/lease",
        ready_fd=-1,
        owner_fd=-1,
    )


async def spawn(
    command: Sequence[str], context: ChildContext, settings: object, stderr: int | None = None
) -> Spawned:
    """Run Python with ``command``, and wait until the child is ready or has ended.

    Args:
        command: what follows the interpreter, up to the arguments of every child.
        context: who it is.
        settings: what it reads as JSON.
        stderr: as asyncio's subprocesses take it.

    Returns:
        The child; the caller ends it.
    """
    file = Path(context.run_dir, f"{context.role}-{context.epoch}.json")
    file.write_bytes(msgspec.json.encode(settings))  # noqa: ASYNC240  a few bytes
    ready_fd, child_ready_fd = os.pipe()
    child_owner_fd, owner_fd = os.pipe()
    context = msgspec.structs.replace(context, ready_fd=child_ready_fd, owner_fd=child_owner_fd)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, "--child", context.argument(), "--settings", str(file)),
        pass_fds=(child_ready_fd, child_owner_fd),
        stderr=stderr,
    )
    os.close(child_ready_fd)
    os.close(child_owner_fd)
    with os.fdopen(ready_fd) as ready:
        line = await asyncio.to_thread(ready.readline)
    return Spawned(process, msgspec.json.decode(line or "{}", type=dict[str, str]), owner_fd)
