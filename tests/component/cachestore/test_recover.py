"""A store finds everything again, and damage makes its list shorter and nothing worse."""

import random
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bramley.cachestore.disk import Disk
from bramley.cachestore.objects import ALIGN, StoredObject
from support.failing_files import FailingFiles, UnsyncedFiles
from support.stored import (
    IDENTITY,
    OTHER_ROOT,
    ROOT,
    Disks,
    fill,
    make_stored,
    object_files,
    read,
)

HEADER = ALIGN  # of the small objects here


def is_readable(disk: Disk) -> bool:
    """Whether all that is listed is read as it was written."""
    made = {stored.id: bytes(payload) for stored, payload in map(make_stored, range(20))}
    return all(read(disk, stored) == made[stored.id] for stored in disk.objects())


def stamps(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        key: (file.stat().st_ino, file.stat().st_mtime_ns)
        for key, file in object_files(folder).items()
    }


@pytest.mark.parametrize("clean", [True, False])
def test_b026_after_a_restart_everything_is_found_and_not_written_again(
    disks: Disks, folder: Path, *, clean: bool
) -> None:
    disk = disks.open(folder)
    disk.put_namespace(ROOT, IDENTITY)
    made = fill(disk, 8)
    before = stamps(folder)
    again = disks.open(folder, clean=clean)
    assert again.objects() == made
    assert again.namespaces() == {ROOT: IDENTITY}
    assert again.found.trusted == (8 if clean else 0)
    assert fill(again, 8) == made
    assert is_readable(again)
    assert stamps(folder) == before


def delete(index: Path) -> None:
    index.unlink()


def fill_with_garbage(index: Path) -> None:
    index.write_bytes(random.Random(4).randbytes(50_000))  # noqa: S311


def cut(index: Path) -> None:
    with index.open("r+b") as file:
        file.truncate(index.stat().st_size // 2)


def scramble_pages(index: Path) -> None:
    with index.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * 8192)


def make_a_folder_of_it(index: Path) -> None:
    index.unlink()
    index.mkdir()


def make_another_database_of_it(index: Path) -> None:
    index.unlink()
    with sqlite3.connect(index) as other:
        other.execute("CREATE TABLE objects (something)")
    other.close()


def change_rows(index: Path) -> None:
    with sqlite3.connect(index) as other:
        other.execute("UPDATE objects SET entry = substr(entry, 2)")
        other.execute("INSERT INTO objects VALUES (x'ff', 1, NULL)")
        other.execute("INSERT OR REPLACE INTO used VALUES ('a', 'b')")
    other.close()


def swap_rows(index: Path) -> None:
    with sqlite3.connect(index) as other:
        other.execute("UPDATE objects SET id = id || '0'")
    other.close()


@pytest.mark.parametrize(
    "damage",
    [
        delete,
        fill_with_garbage,
        cut,
        scramble_pages,
        make_a_folder_of_it,
        make_another_database_of_it,
        change_rows,
        swap_rows,
    ],
)
def test_report_4_b026_without_a_sound_index_everything_is_found(
    disks: Disks, folder: Path, damage: Callable[[Path], None]
) -> None:
    made = fill(disks.open(folder), 8)
    disks.close()
    disks.open(folder)
    disks.open(folder)  # so that the index says that all is well
    disks.close(clean=True)
    before = stamps(folder)
    damage(folder / "index.db")
    disk = disks.open(folder)
    assert disk.objects() == made
    assert fill(disk, 8) == made
    assert is_readable(disk)
    assert stamps(folder) == before
    assert disks.open(folder).objects() == made


def test_an_index_that_lacks_the_last_files_is_completed(disks: Disks, folder: Path) -> None:
    fill(disks.open(folder), 4)
    disks.close(clean=True)
    shutil.copy(folder / "index.db", folder.parent / "old.db")
    made = fill(disks.open(folder), 8)
    disks.close(clean=True)
    shutil.copy(folder.parent / "old.db", folder / "index.db")
    disk = disks.open(folder)
    assert (disk.objects(), disk.found.trusted) == (made, 4)
    assert is_readable(disk)


def test_an_index_that_tells_of_lost_files_is_corrected(disks: Disks, folder: Path) -> None:
    one, two = fill(disks.open(folder), 2)
    disks.close(clean=True)
    object_files(folder)[one.id].unlink()
    assert disks.open(folder).objects() == [two]
    assert disks.open(folder).objects() == [two]


def flip(place: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[place] ^= 1
        file.write_bytes(content)

    return damage


def cut_to(size: int) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        file.write_bytes(file.read_bytes()[:size])

    return damage


def blank_page(file: Path) -> None:
    with file.open("r+b") as opened:
        opened.write(bytes(4096))


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def write_text(file: Path) -> None:
    file.write_text("no object")


DAMAGES = {
    **{f"flip-{place}": flip(place) for place in (0, 7, 8, 9, 40, 60, 200, 700, HEADER - 1)},
    **{f"cut-to-{size}": cut_to(size) for size in (0, 1, 8, HEADER - 1, HEADER, HEADER + 9)},
    "blank-page": blank_page,
    "grow": grow,
    "text": write_text,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("clean", [True, False])
def test_b028_report_10_a_damaged_file_makes_the_list_shorter(
    disks: Disks, folder: Path, damage: str, *, clean: bool
) -> None:
    one, *others = fill(disks.open(folder), 4)
    disks.close(clean=clean)
    file = object_files(folder)[one.id]
    DAMAGES[damage](file)
    content = file.read_bytes()
    disk = disks.open(folder)
    assert disk.objects() == others
    assert is_readable(disk)
    assert [path for path, _ in disk.found.damaged] == [file]
    assert [path.read_bytes() for path in (folder / "quarantine").iterdir()] == [content]
    disk.write(*make_stored(0))  # its name is free again
    assert is_readable(disk)
    assert len(disk.objects()) == 4


def swap(one: Path, other: Path) -> None:
    between = one.with_suffix(".between")
    one.rename(between)
    other.rename(one)
    between.rename(other)


def test_b028_files_that_swapped_names_are_not_listed(disks: Disks, folder: Path) -> None:
    one, two, three = fill(disks.open(folder), 3)
    disks.close(clean=True)
    files = object_files(folder)
    swap(files[one.id], files[two.id])
    assert disks.open(folder).objects() == [three]


def test_b028_a_file_in_another_namespace_is_not_listed(disks: Disks, folder: Path) -> None:
    disk = disks.open(folder)
    ours, _ = stored = make_stored(1)
    theirs, _ = foreign = make_stored(1, name=OTHER_ROOT)
    disk.write(*stored)
    disk.write(*foreign)
    files = object_files(folder)
    swap(files[ours.id], files[theirs.id])
    moved = files[ours.id].parents[1] / theirs.id[:2] / files[theirs.id].name
    moved.parent.mkdir(exist_ok=True)
    files[ours.id].rename(moved)
    disk = disks.open(folder)
    assert disk.objects() == []
    assert len(disk.found.damaged) == 2


def test_b028_leftovers_of_writes_are_cleared(disks: Disks, folder: Path) -> None:
    made = fill(disks.open(folder), 1)
    for name in ("abcd.0", "abcd.1", "x_tmp"):
        (folder / "tmp" / name).write_bytes(b"half")
    disk = disks.open(folder, clean=False)
    assert disk.objects() == made
    assert len(disk.found.leftovers) == 3
    assert [*(folder / "tmp").iterdir()] == []


def as_newer(file: Path) -> None:
    """Make it what a newer version would write, sealed by the rule that all versions keep."""
    import xxhash

    content = file.read_bytes()
    header = bytearray(content[:HEADER].replace(b'"reader":"1"', b'"reader":"7"'))
    place = header.index(b'"xxh3":"') + 8
    header[place : place + 32] = b"0" * 32
    header[place : place + 32] = xxhash.xxh3_128_hexdigest(header).encode()
    file.write_bytes(header + content[HEADER:])


def as_foreign(file: Path) -> None:
    text = b'{"weight":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    file.write_bytes(len(text).to_bytes(8, "little") + text + b"w")


@pytest.mark.parametrize("make", [as_newer, as_foreign])
def test_newer_and_foreign_files_are_left_alone(
    disks: Disks, folder: Path, make: Callable[[Path], None]
) -> None:
    one, two = fill(disks.open(folder), 2)
    file = object_files(folder)[one.id]
    make(file)
    content = file.read_bytes()
    disk = disks.open(folder, clean=False)
    assert disk.objects() == [two]
    assert len(disk.found.newer) + len(disk.found.foreign) == 1
    with pytest.raises(FileExistsError):
        disk.write(*make_stored(0))
    assert file.read_bytes() == content
    assert [*(folder / "quarantine").iterdir()] == []


def test_b028_foreign_files_and_folders_are_left_alone(disks: Disks, folder: Path) -> None:
    made = fill(disks.open(folder), 2)
    namespace = object_files(folder)[made[0].id].parents[1]
    foreign = [
        folder / "notes.txt",
        folder / "x_tmp",
        folder / "ns" / "notes.txt",
        folder / "ns" / "other" / "a.kvx",
        namespace / "notes.txt",
        namespace / "zz" / "a.kvx",
        namespace / made[0].id[:2] / "NAME.kvx",
        namespace / made[0].id[:2] / f"{made[0].id}.kvx.old",
        folder / "tmp" / "sub" / "file",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    disk = disks.open(folder)
    assert disk.objects() == made
    assert len(disk.found.foreign) == 6
    assert all(path.read_text() == "mine" for path in foreign)


def test_what_cannot_be_read_now_is_left_alone(disks: Disks, folder: Path) -> None:
    files = FailingFiles()
    made = fill(disks.open(folder), 3)
    disks.close()
    files.fail_all("read_into", code=5)
    with pytest.raises(OSError, match="Input/output"):
        disks.open(folder, files)
    files.heal()
    files.fail_all("fstat", code=5)
    disk = disks.open(folder, files)
    assert disk.objects() == []
    assert len(disk.found.unreadable) == 3
    assert disks.open(folder, clean=False).objects() == made


@pytest.mark.parametrize("damage", [None, blank_page, write_text])
def test_what_could_not_be_read_is_replaced_by_the_next_write(
    disks: Disks, folder: Path, damage: Callable[[Path], None] | None
) -> None:
    files = FailingFiles()
    (stored,) = fill(disks.open(folder), 1)
    disks.close()
    files.fail_all("fstat", code=5)
    disk = disks.open(folder, files)
    files.heal()
    if damage is not None:
        damage(object_files(folder)[stored.id])
    fill(disk, 1)
    assert is_readable(disk)
    again = disks.open(folder, clean=False)
    assert again.objects() == [stored]
    assert is_readable(again)
    assert [*(folder / "tmp").iterdir()] == []


def test_a_start_that_cannot_clear_up_serves_what_is_sound(disks: Disks, folder: Path) -> None:
    one, two = fill(disks.open(folder), 2)
    object_files(folder)[one.id].write_bytes(b"")
    files = FailingFiles()
    files.fail_all("rename", code=5)
    assert disks.open(folder, files, clean=False).objects() == [two]


def test_report_13_nothing_sound_is_removed_at_the_start(disks: Disks, folder: Path) -> None:
    files = FailingFiles()
    fill(disks.open(folder), 5)
    disks.open(folder, files)
    assert not {"unlink", "rename"} & set(files.made)


def seconds_to_open(disks: Disks, folder: Path) -> float:
    start_s = time.perf_counter()
    assert len(disks.open(folder).objects()) == 2000
    return time.perf_counter() - start_s


def test_2000_objects_are_found_in_time(disks: Disks, folder: Path) -> None:
    disk = disks.open(folder, UnsyncedFiles())
    for number in range(2000):
        stored, payload = make_stored(number, (100,) * 4)
        disk.write(stored, payload)
    assert min(seconds_to_open(disks, folder) for _ in range(3)) <= 0.5
    disks.close(clean=True)
    (folder / "index.db").unlink()
    assert seconds_to_open(disks, folder) <= 5


def orders(objects: list[StoredObject]) -> list[int]:
    return [stored.first_token for stored in objects]


def test_a_child_without_its_parent_is_listed(disks: Disks, folder: Path) -> None:
    disk = disks.open(folder)
    one, payload = make_stored(1)
    disk.write(one, payload)
    two, payload = make_stored(2, parent=one)
    disk.write(two, payload)
    disk.remove(one.id)
    assert orders(disks.open(folder).objects()) == [512]
