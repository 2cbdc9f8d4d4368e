"""A writer is killed at random moments: what it said was written is there, whole."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bramley.cachestore.disk import Disk
from support import disk_writer
from support.stored import make_stored, object_files, read

ROUNDS = 20  # on one disk
NUMBERS = 1000  # a round


def write_and_kill(folder: Path, number: int, wait_s: float) -> list[str]:
    """Let a process write, kill it some time after its start, and return what it said."""
    child = subprocess.Popen(
        [sys.executable, disk_writer.__file__, folder, str(number * NUMBERS), str(number)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert child.stdout is not None
    with child:
        said = [child.stdout.readline().strip()]
        time.sleep(wait_s)  # the moment of its death is what is tried
        child.kill()
        said += child.stdout.read().splitlines()
    assert said[0] == "open"
    return said[1:]


def kill_often(folder: Path, kills: int, seed: int) -> None:
    """Kill a writer so often, on a new disk now and then."""
    print(f"seed {seed}")  # noqa: T201
    chance = random.Random(seed)  # noqa: S311
    for at in range(0, kills, ROUNDS):
        kill_on_one_disk(folder / f"store-{at}", min(ROUNDS, kills - at), chance)
        shutil.rmtree(folder / f"store-{at}")


def kill_on_one_disk(folder: Path, rounds: int, chance: random.Random) -> None:
    there: set[str] = set()
    for number in range(rounds):
        said = write_and_kill(folder, number, chance.uniform(0, 0.15))
        there |= {line[1:] for line in said if line[0] == "+" and len(line) == 33}
        gone = {line[1:] for line in said if line[0] == "-"}
        there -= {line[1:] for line in said[:-1] if line[0] == "-"}
        disk = Disk.open(folder)
        listed = {stored.id for stored in disk.objects()}
        # The last one may have been written, or removed, without a word.
        assert there - gone <= listed
        assert len(listed - there) <= 1
        assert disk.found.damaged == []
        assert [*(folder / "tmp").iterdir()] == []
        assert object_files(folder).keys() == listed
        there = listed
        disk.close(clean=False)
    check_all(folder)


def test_b026_b028_twenty_kills_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    kill_often(tmp_path, 20, seed=26)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_b026_b028_two_hundred_kills_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    kill_often(tmp_path, 200, seed=random.randrange(1 << 30))  # noqa: S311


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_b026_b028_five_thousand_kills_lose_nothing_and_tear_nothing(tmp_path: Path) -> None:
    kill_often(tmp_path, 5000, seed=random.randrange(1 << 30))  # noqa: S311


def check_all(folder: Path) -> None:
    disk = Disk.open(folder)
    for stored in disk.objects():
        number = int(stored.session_key.removeprefix("session "))
        assert read(disk, stored) == make_stored(number, disk_writer.SIZES)[1]
    assert len(disk.objects()) > ROUNDS
    disk.close(clean=True)
