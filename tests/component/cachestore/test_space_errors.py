"""A disk that is full or sick at any one call: no crash, no hang, nothing torn, and it heals."""

import asyncio
import errno
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bramley.cachestore import admin, policy
from bramley.cachestore.disk import Disk
from support.core import CoreProcess, drop_copies, put, read
from support.failing_files import CALLS
from support.simulated_disk import SimulatedDisk
from support.store import KV, identity, ids
from support.stored import make_stored
from support.stored import read as read_stored

SLOW = 0  # instead of an error's code
PROMPTS = [(512, 0, 0), (1024, 0, 2), (512, 1, 0)]  # tokens, seed, first block
NEVER_SICK = {"close", "lock", "restrict"}


class SickDisk(SimulatedDisk):
    """Fails, or is slow, at the n-th call of a kind.

    Attributes:
        made: calls by their kind.
        fault: kind, number and code of the call that fails.
        lasts: whether all later calls of the kind fail too.
    """

    def __init__(self, mount: Path) -> None:
        super().__init__(mount)
        self.has_drive_cache = False
        self.made: Counter[str] = Counter()
        self.fault: tuple[str, int, int] = ("", -1, 0)
        self.lasts = False

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return partial(self._sick, name, value) if name in CALLS - NEVER_SICK else value

    def _sick(self, name: str, call: Any, *arguments: Any) -> Any:
        kind, number, code = self.fault
        is_hit = name == kind and (self.made[name] == number or self.lasts)
        self.made[name] += 1
        if is_hit and self.made[name] > number:
            if code != SLOW:
                raise OSError(code, os.strerror(code))
            time.sleep(0.005)
        return call(*arguments)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "BREAKER_MIN_S", 0.002)
    monkeypatch.setattr(policy, "BREAKER_MAX_S", 0.004)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for SQLite's files, in RAM where the system offers it."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


async def started(files: SimulatedDisk, epoch: int) -> tuple[CoreProcess, bytes]:
    process = CoreProcess(files.mount, files, epoch, ram_bytes=1 << 20, disk_bytes=1 << 21)
    store = await process.start()
    root = store.open_namespace(identity(), [KV], 0.0)
    if store.tiers.disk is not None:
        with suppress(OSError):
            await store.tiers.on_disk_thread(store.tiers.disk.put_namespace, root, identity())
    return process, root


async def work(files: SimulatedDisk) -> None:
    """Write, read, remove, set aside, flush, stop, start and read."""
    process, root = await started(files, 1)
    store = process.store
    for tokens, seed, first in PROMPTS:
        await put(store, root, ids(tokens, seed), first)
    await process.flush(b"")
    drop_copies(store)
    for tokens, seed, _ in PROMPTS:
        await read(store, root, ids(tokens + 1, seed))
    await admin.evict(store, [*store.tiers.catalogue.entries.values()][-1:], 0.0)
    for entry in [*store.tiers.catalogue.disk.values()][-1:]:
        store.tiers.quarantine(entry)
    await put(store, root, ids(256, 2))
    await process.flush(b"")
    store.check()
    await process.stop()
    process, root = await started(files, 2)
    for tokens, seed, _ in PROMPTS:
        await read(process.store, root, ids(tokens + 1, seed))
    await put(process.store, root, ids(256, 3))
    process.store.check()
    await process.stop()


async def heals(files: SickDisk) -> None:
    """When the fault is over all can be written and read again, now and after a start."""
    files.fault, files.lasts = ("", -1, 0), False
    process, root = await started(files, 3)
    store = process.store
    assert store.tiers.disk is not None
    for tokens, seed, first in PROMPTS:
        assert await put(store, root, ids(tokens, seed), first) == "ok"
    assert (await process.flush(b"")).ok
    store.check()
    await process.stop()
    process, root = await started(files, 4)
    for tokens, seed, _ in PROMPTS:
        assert await read(process.store, root, ids(tokens + 1, seed)) == tokens
    assert not process.store.counts["corrupt"]
    await process.stop()
    assert not any(path.startswith("tmp/") for path in files.content())


def mount(place: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=place))


async def try_all(place: Path, faults: Callable[[int, str], Iterable[tuple[int, bool]]]) -> int:
    """Let each call of the work fail in turn, by the codes, and for how long, that are chosen.

    Returns:
        How many were tried.
    """
    sound = SickDisk(mount(place))
    await work(sound)
    assert {"write", "fdatasync", "link", "read_into", "unlink", "rename"} <= sound.made.keys()
    calls = [(kind, number) for kind in sorted(sound.made) for number in range(sound.made[kind])]
    tried = 0
    for at, (kind, number) in enumerate(calls):
        for code, lasts in faults(at, kind):
            files = SickDisk(mount(place))
            files.fault, files.lasts = (kind, number, code), lasts
            try:
                async with asyncio.timeout(20.0):
                    await work(files)
                    await heals(files)
            except BaseException as error:
                error.add_note(f"{kind} number {number}, code {code}, {lasts=}")
                raise
            tried += 1
    return tried


CODES = [errno.ENOSPC, errno.EDQUOT, errno.EIO, SLOW]


async def test_a_flush_does_not_wait_for_a_writer_that_died(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = CoreProcess(place, SimulatedDisk(place), 1)
    store = await process.start()
    assert store.spiller is not None

    async def dies(entry: object) -> None:
        raise RuntimeError(entry)

    monkeypatch.setattr(store.spiller, "_write", dies)
    await put(store, store.open_namespace(identity(), [KV], 0.0), ids(512))
    for _ in range(2):  # one that waits when it dies, and one that comes later
        async with asyncio.timeout(5.0):
            told = await process.flush(b"")
        assert (told.ok, told.pending) == (False, 1)
    await process.stop()


async def test_report_2_b026_an_error_at_any_call_tears_and_loses_nothing(place: Path) -> None:
    def in_turn(at: int, kind: str) -> list[tuple[int, bool]]:
        """One fault a call, and of those that only look each fourth."""
        is_left_out = kind in {"stat", "list", "fstat"} and at % 4
        return [] if is_left_out else [(CODES[at // 3 % 4], at % 2 == 0)]

    assert await try_all(place, in_turn) > 80


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("code", CODES)
async def test_report_2_b026_every_error_at_every_call_tears_and_loses_nothing(
    place: Path, code: int
) -> None:
    def both(_: int, __: str) -> list[tuple[int, bool]]:
        return [(code, False), (code, True)]

    assert await try_all(place, both) > 200


def test_short_reads_and_writes_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)  # noqa: S311
    pwrite, preadv = os.pwrite, os.preadv

    def write_less(fd: int, data: memoryview, offset: int) -> int:
        return pwrite(fd, data[: chance.randint(1, 3000)], offset)

    def read_less(fd: int, targets: list[memoryview], offset: int) -> int:
        return preadv(fd, [targets[0][: chance.randint(1, 3000)]], offset)

    monkeypatch.setattr(os, "pwrite", write_less)
    monkeypatch.setattr(os, "preadv", read_less)
    disk = Disk.open(tmp_path / "store")
    made = [make_stored(number) for number in range(5)]
    for stored, payload in made:
        disk.write(stored, payload)
    disk.close(clean=False)
    disk = Disk.open(tmp_path / "store")
    assert disk.objects() == [stored for stored, _ in made]
    assert all(read_stored(disk, stored) == payload for stored, payload in made)
    disk.close(clean=False)


def test_signals_interrupt_neither_reading_nor_writing(tmp_path: Path) -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: seen.append(number))
    signal.siginterrupt(signal.SIGALRM, True)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        disk = Disk.open(tmp_path / "store")
        stored, payload = make_stored(1, (2 << 20, 2 << 20))
        disk.write(stored, payload)
        is_right = read_stored(disk, stored) == bytes(payload)
        disk.close(clean=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert is_right
    assert len(seen) > 3


LIMITED = """
import pathlib, resource, sys
from bramley.cachestore.disk import Disk
from support.stored import make_stored, read
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
disk = Disk.open(pathlib.Path(sys.argv[1]))
small, large = make_stored(1, (100,)), make_stored(2, (50_000, 50_000))
for _ in range(3):
    disk.write(*small)
    try:
        disk.write(*large)
    except OSError:
        print("refused")
assert [each.id for each in disk.objects()] == [small[0].id]
assert read(disk, small[0]) == small[1]
disk.close(clean=True)
"""


def test_a_limit_of_the_size_of_files_refuses_what_is_larger(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, tmp_path / "store"],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "refused\n" * 3), done.stderr
    assert not list((tmp_path / "store" / "tmp").iterdir())
    disk = Disk.open(tmp_path / "store")  # without the limit
    disk.write(*make_stored(2, (50_000, 50_000)))
    assert len(disk.objects()) == 2
    disk.close(clean=True)
