"""Ownership of a state folder: who may have it, who has lost it."""

import asyncio
import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import NoReturn

import msgspec
import psutil
import pytest

from bramley.common.lease import LEASE_TTL_S, Lease, read_lease
from bramley.deploy import lease
from bramley.deploy.lease import Owned, Ownership, acquire
from bramley.deploy.state import StateFolder


class FencedError(Exception):
    """Stands for the end of the process."""


def _fenced(why: str) -> NoReturn:
    raise FencedError(why)


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    return StateFolder(tmp_path)


@pytest.fixture
def other() -> Generator[subprocess.Popen[bytes]]:
    """Run another process, which does nothing."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def _leave_lease(state: StateFolder, pid: int, age_s: float, epoch: int = 5) -> None:
    start_time = psutil.Process(pid).create_time() if psutil.pid_exists(pid) else 0.0
    left = Lease(epoch=epoch, pid=pid, start_time=start_time, renewed_s=time.monotonic() - age_s)
    state.lease.write_bytes(msgspec.json.encode(left))


async def test_an_empty_folder_is_taken(state: StateFolder) -> None:
    owned = await acquire(state)
    left = read_lease(state.lease)
    assert left is not None
    assert (left.epoch, left.pid) == (owned.epoch, os.getpid())
    assert left.is_fresh(time.monotonic())


async def test_a_fresh_lease_of_a_living_process_is_respected(
    state: StateFolder, other: subprocess.Popen[bytes]
) -> None:
    _leave_lease(state, other.pid, age_s=0)
    with pytest.raises(Owned, match=str(other.pid)):
        await acquire(state)


async def test_an_expired_lease_is_taken_over_under_a_higher_epoch(
    state: StateFolder, other: subprocess.Popen[bytes]
) -> None:
    _leave_lease(state, other.pid, age_s=LEASE_TTL_S)
    assert (await acquire(state)).epoch == 6


async def test_a_fresh_lease_of_a_dead_process_is_taken_over(state: StateFolder) -> None:
    dead = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await dead.wait()
    _leave_lease(state, dead.pid, age_s=0)
    assert (await acquire(state)).epoch == 6


async def test_a_fresh_lease_of_a_zombie_is_taken_over(
    state: StateFolder, other: subprocess.Popen[bytes]
) -> None:
    _leave_lease(state, other.pid, age_s=0)
    os.kill(other.pid, signal.SIGKILL)
    while psutil.Process(other.pid).status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await acquire(state)).epoch == 6


async def test_one_who_lost_the_lease_acts_no_more(state: StateFolder) -> None:
    old = Ownership(state, (await acquire(state)).epoch, _fenced)
    async with old.acting():
        pass
    _leave_lease(state, os.getpid(), age_s=0, epoch=old.epoch + 1)
    with pytest.raises(FencedError):
        async with old.acting():
            pytest.fail("it acted")


async def test_a_lease_that_is_gone_is_lost(state: StateFolder) -> None:
    owned = Ownership(state, (await acquire(state)).epoch, _fenced)
    state.lease.unlink()
    with pytest.raises(FencedError):
        async with owned.acting():
            pytest.fail("it acted")


async def test_a_folder_that_is_gone_is_lost(state: StateFolder) -> None:
    owned = Ownership(state, (await acquire(state)).epoch, _fenced)
    state.path.rename(state.path.with_name("moved"))
    with pytest.raises(FencedError, match="the state folder is gone"):
        async with owned.acting():
            pytest.fail("it acted")


async def test_two_tasks_of_one_owner_act_in_turn(state: StateFolder) -> None:
    owned = await acquire(state)
    order: list[str] = []

    async def act(name: str) -> None:
        async with owned.acting():
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(act("a"), act("b"))
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_a_release_leaves_neither_lease_nor_lock(state: StateFolder) -> None:
    await (await acquire(state)).release()
    assert not state.lease.exists()
    assert not state.lock.exists()
    await acquire(state)


async def test_the_lease_is_renewed_on_a_full_disk(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lease, "_RENEW_EVERY_S", 0.01)
    owned = await acquire(state)
    before = read_lease(state.lease)
    assert before is not None
    monkeypatch.setattr(lease, "replace_file", full)
    keeping = asyncio.create_task(owned.keep())
    async with asyncio.timeout(5):
        while (now := read_lease(state.lease)) is None or (  # noqa: ASYNC110
            now.renewed_s == before.renewed_s
        ):
            await asyncio.sleep(0.01)
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    assert now.epoch == owned.epoch


HOLDER = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


async def test_an_owner_stopped_with_the_lock_in_hand_is_killed(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_LOCK_PATIENCE_S", 0.2)
    pipe = asyncio.subprocess.PIPE
    holder = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, str(state.lock), stdin=pipe, stdout=pipe
    )
    assert holder.stdout is not None
    assert await holder.stdout.readline() == b"held\n"
    _leave_lease(state, holder.pid, age_s=LEASE_TTL_S)
    assert (await acquire(state)).epoch == 6
    assert await holder.wait() == -signal.SIGKILL


async def test_a_lock_held_by_a_stranger_is_not_broken(
    state: StateFolder, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_LOCK_PATIENCE_S", 0.2)
    with state.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(Owned, match="held"):
            await acquire(state)
    assert other.poll() is None
