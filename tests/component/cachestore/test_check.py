"""A folder is looked at, and put in order, while its store is stopped."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bramley.cachestore.objects import ALIGN
from support.stored import Disks, fill, object_files


def check(folder: Path, *options: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "bramley.cachestore.check", str(folder), *options],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


def test_a_sound_folder_is_said_to_be_sound(disks: Disks, folder: Path) -> None:
    fill(disks.open(folder), 3)
    disks.close(clean=True)
    code, text = check(folder, "--bodies")
    assert code == 0
    assert "entries 3" in text
    assert disks.open(folder).found.trusted == 3  # and it is left as it was


def test_a_killed_stores_folder_is_sound(disks: Disks, folder: Path) -> None:
    fill(disks.open(folder), 3)
    (folder / "tmp" / "half").touch()
    disks.close()
    code, text = check(folder)
    assert code == 0
    assert "did not finish" in text


@pytest.mark.parametrize(("place", "options"), [(100, ()), (ALIGN + 1, ("--bodies",))])
def test_damage_is_named_and_repaired(
    disks: Disks, folder: Path, place: int, options: tuple[str, ...]
) -> None:
    one, two = fill(disks.open(folder), 2)
    disks.close(clean=True)
    flip(object_files(folder)[one.id], place)
    code, text = check(folder, *options)
    assert code == 1
    assert f"{one.id}.kvx: damaged" in text
    assert object_files(folder).keys() == {one.id, two.id}
    code, text = check(folder, "--repair", *options)
    assert code == 0
    assert f"{one.id}.kvx: damaged" in text
    assert object_files(folder).keys() == {two.id}
    assert len([*(folder / "quarantine").iterdir()]) == 1
    code, text = check(folder, "--bodies")
    assert (code, "damaged:" in text) == (0, False)
    disk = disks.open(folder)
    assert (disk.objects(), disk.found.trusted) == ([two], 1)


def test_a_payload_is_not_read_unless_told_so(disks: Disks, folder: Path) -> None:
    (one,) = fill(disks.open(folder), 1)
    disks.close()
    flip(object_files(folder)[one.id], ALIGN + 1)
    assert check(folder)[0] == 0


def test_an_index_that_differs_from_the_files_is_named_and_renewed(
    disks: Disks, folder: Path
) -> None:
    one, two = fill(disks.open(folder), 2)
    disks.close(clean=True)
    object_files(folder)[one.id].unlink()
    code, text = check(folder)
    assert code == 1
    assert f"{one.id}: the index and the files differ" in text
    assert check(folder, "--repair")[0] == 0
    assert check(folder)[0] == 0
    assert disks.open(folder).objects() == [two]


def test_foreign_files_are_left_alone_in_a_repair(disks: Disks, folder: Path) -> None:
    fill(disks.open(folder), 1)
    disks.close()
    (folder / "ns" / "notes.txt").write_text("mine")
    code, text = check(folder, "--repair")
    assert code == 0
    assert "notes.txt: not the store's" in text
    assert (folder / "ns" / "notes.txt").read_text() == "mine"


def test_a_running_store_is_not_disturbed(disks: Disks, folder: Path) -> None:
    disks.open(folder)
    code, text = check(folder)
    assert code == 2
    assert "another one owns it" in text


def test_what_is_no_store_is_not_made_one(folder: Path) -> None:
    code, text = check(folder)
    assert code == 2
    assert "No such file" in text
    assert not folder.exists()
    folder.mkdir()
    assert check(folder)[0] == 2
    assert [*folder.iterdir()] == []


def test_what_a_smaller_budget_would_cost_is_said_and_nothing_is_removed(
    disks: Disks, folder: Path
) -> None:
    made = fill(disks.open(folder), 4)
    disks.close(clean=True)
    before = object_files(folder)
    sizes = {one.id: before[one.id].stat().st_blocks * 512 for one in made}
    code, text = check(folder, "--budget", str(1 << 40))
    assert (code, "over budget by 0 bytes" in text) == (0, True)
    assert "would leave" not in text
    code, text = check(folder, "--budget", "0")
    assert code == 0
    assert len(re.findall("would leave", text)) == 4
    used = int(re.findall(r"over budget by (\d+) bytes", text)[0])
    code, text = check(folder, "--budget", str(used - max(sizes.values())))
    assert 1 <= len(re.findall("would leave", text)) < 4
    assert object_files(folder).keys() == before.keys()
    assert disks.open(folder).found.trusted == 4
