"""Objects on disk: written whole or not at all, read as written."""

import errno
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from bramley.cachestore import folder as bounds
from bramley.cachestore.disk import Disk, DiskFull
from bramley.cachestore.folder import DiskUnavailable
from bramley.cachestore.format import Damaged
from bramley.cachestore.objects import ALIGN
from support.failing_files import FailingFiles, HeldFiles
from support.stored import (
    IDENTITY,
    OTHER_IDENTITY,
    OTHER_ROOT,
    ROOT,
    Disks,
    everything,
    fill,
    make_stored,
    object_files,
    physical_bytes,
    read,
)


@pytest.fixture
def disk(disks: Disks, folder: Path) -> Disk:
    return disks.open(folder)


def test_what_is_written_is_read(disk: Disk) -> None:
    stored, payload = make_stored(1)
    disk.write(stored, payload)
    assert disk.objects() == [stored]
    assert read(disk, stored) == payload


@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 1), (1, 1), (1, 2), (2, 2), (0, 2)])
def test_any_run_of_parts_can_be_read(disk: Disk, first: int, last: int) -> None:
    stored, payload = make_stored(1, (ALIGN, 2 * ALIGN, 100))
    disk.write(stored, payload)
    edges = [0, ALIGN, 3 * ALIGN, 4 * ALIGN]
    target = memoryview(bytearray(edges[last + 1] - edges[first]))
    disk.read_into(stored.id, first, last, target)
    assert target == payload[edges[first] : edges[last + 1]]


@pytest.mark.parametrize(
    ("first", "last", "size"), [(0, 1, ALIGN), (1, 0, 0), (0, 2, ALIGN), (-1, 0, ALIGN)]
)
def test_a_target_of_another_size_is_refused(disk: Disk, first: int, last: int, size: int) -> None:
    stored, payload = make_stored(1, (ALIGN, ALIGN))
    disk.write(stored, payload)
    with pytest.raises(ValueError, match="are not parts"):
        disk.read_into(stored.id, first, last, memoryview(bytearray(size)))


def test_a_payload_of_another_size_is_refused(disk: Disk, folder: Path) -> None:
    stored, payload = make_stored(1)
    with pytest.raises(ValueError, match="payload of"):
        disk.write(stored, payload[:-1])
    assert disk.objects() == []
    assert [*(folder / "tmp").iterdir()] == []


def test_an_id_is_no_path(disk: Disk) -> None:
    stored, payload = make_stored(1)
    for name in ("../../../escape", "ab/cd", "", "ABCD", "a"):
        with pytest.raises(ValueError, match="is not the id"):
            disk.write(msgspec.structs.replace(stored, id=name), payload)


def test_writing_again_changes_nothing(disk: Disk, folder: Path) -> None:
    stored, payload = make_stored(1)
    disk.write(stored, payload)
    before = object_files(folder)[stored.id].stat()
    disk.write(stored, payload)
    assert object_files(folder)[stored.id].stat() == before


def test_parents_come_before_their_children(disks: Disks, disk: Disk, folder: Path) -> None:
    one, payload_one = make_stored(1)
    two, payload_two = make_stored(2, parent=one)
    three, payload_three = make_stored(3, parent=two)
    for stored, payload in ((three, payload_three), (one, payload_one), (two, payload_two)):
        disk.write(stored, payload)
    assert disks.open(folder).objects() == [one, two, three]


def test_what_is_removed_is_gone(disks: Disks, disk: Disk, folder: Path) -> None:
    one, two = fill(disk, 2)
    disk.remove(one.id)
    disk.remove(one.id)
    assert disk.objects() == [two]
    with pytest.raises(FileNotFoundError):
        read(disk, one)
    assert disks.open(folder).objects() == [two]


def test_what_was_removed_can_be_written_again(disk: Disk) -> None:
    stored, payload = make_stored(1)
    disk.write(stored, payload)
    disk.remove(stored.id)
    disk.write(stored, payload)
    assert read(disk, stored) == payload


def test_b028_a_flipped_byte_in_a_payload_is_never_served(
    disks: Disks, disk: Disk, folder: Path
) -> None:
    one, two = fill(disk, 2)
    file = object_files(folder)[one.id]
    content = bytearray(file.read_bytes())
    content[2 * ALIGN] ^= 1
    file.write_bytes(content)
    with pytest.raises(Damaged, match="part 1"):
        read(disk, one)
    disk.quarantine(one.id)
    assert disk.objects() == [two]
    with pytest.raises(FileNotFoundError):
        read(disk, one)
    again = disks.open(folder)
    assert again.objects() == [two]
    assert [path.read_bytes() for path in (folder / "quarantine").iterdir()] == [content]


def test_a_cut_file_is_never_served(disk: Disk, folder: Path) -> None:
    (stored,) = fill(disk, 1)
    with object_files(folder)[stored.id].open("r+b") as file:
        file.truncate(2 * ALIGN)
    with pytest.raises(Damaged, match="ends too early"):
        read(disk, stored)


def test_quarantine_is_bounded(
    disks: Disks, disk: Disk, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fill(disk, 4)
    size = object_files(folder)[made[0].id].stat().st_blocks * 512
    monkeypatch.setattr(bounds, "QUARANTINE_BYTES", 2 * size)
    for stored in made:
        disk.quarantine(stored.id)
    kept = {path.name.partition(".")[0] for path in (folder / "quarantine").iterdir()}
    assert kept == {made[2].id, made[3].id}
    monkeypatch.setattr(bounds, "QUARANTINE_S", -1.0)
    assert [*disks.open(folder).objects(), *(folder / "quarantine").iterdir()] == []


def test_namespaces_of_objects_are_remembered(disks: Disks, disk: Disk, folder: Path) -> None:
    disk.put_namespace(ROOT, IDENTITY)
    fill(disk, 1)
    disk.put_namespace(ROOT, IDENTITY)
    disk.write(*make_stored(1, name=OTHER_ROOT))
    disk.put_namespace(OTHER_ROOT, OTHER_IDENTITY)
    assert disks.open(folder).namespaces() == {ROOT: IDENTITY, OTHER_ROOT: OTHER_IDENTITY}


def test_a_namespace_without_objects_takes_nothing(disk: Disk, folder: Path) -> None:
    before = disk.used_bytes
    disk.put_namespace(ROOT, IDENTITY)
    assert disk.used_bytes == before
    assert not list((folder / "ns").iterdir())


@pytest.mark.parametrize("leave", [Disk.remove, Disk.quarantine])
def test_a_namespace_goes_with_its_last_object_and_comes_back_with_the_next(
    disks: Disks, disk: Disk, folder: Path, leave: Callable[[Disk, str], None]
) -> None:
    disk.put_namespace(ROOT, IDENTITY)
    one, two = fill(disk, 2)
    leave(disk, one.id)
    assert disk.namespaces() == {ROOT: IDENTITY}
    leave(disk, two.id)
    assert disk.namespaces() == {}
    assert not list((folder / "ns").iterdir())
    assert disk.used_bytes == physical_bytes(folder)
    assert fill(disk, 2) == [one, two]
    assert disk.used_bytes == physical_bytes(folder)
    assert disks.open(folder).namespaces() == {ROOT: IDENTITY}


def test_an_empty_namespace_goes_at_the_start(disks: Disks, disk: Disk, folder: Path) -> None:
    disk.put_namespace(ROOT, IDENTITY)
    (stored,) = fill(disk, 1)
    disks.close()
    object_files(folder)[stored.id].unlink()
    again = disks.open(folder)
    assert again.namespaces() == {}
    assert not list((folder / "ns").iterdir())
    assert again.used_bytes == physical_bytes(folder)


@pytest.mark.parametrize("name", ["notes.txt", "ab", "ab/notes.txt", "longer/notes.txt"])
def test_a_namespace_in_which_something_is_not_ours_stays(
    disks: Disks, disk: Disk, folder: Path, name: str
) -> None:
    disk.put_namespace(ROOT, IDENTITY)
    (stored,) = fill(disk, 1)
    (space,) = (folder / "ns").iterdir()
    (space / name).parent.mkdir(exist_ok=True)
    (space / name).write_text("mine")
    disk.remove(stored.id)
    disks.open(folder)
    assert (space / name).read_text() == "mine"
    assert (space / "namespace.json").exists()


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff", b'{"root":"00","identity":{}}'])
def test_a_damaged_namespace_keeps_its_objects(
    disks: Disks, disk: Disk, folder: Path, damage: bytes
) -> None:
    disk.put_namespace(ROOT, IDENTITY)
    (stored,) = fill(disk, 1)
    (file,) = folder.glob("ns/*/namespace.json")
    file.write_bytes(damage)
    again = disks.open(folder)
    assert (again.namespaces(), again.objects()) == ({}, [stored])
    again.put_namespace(ROOT, IDENTITY)
    assert disks.open(folder).namespaces() == {ROOT: IDENTITY}


def test_times_of_use_survive(disks: Disks, disk: Disk, folder: Path) -> None:
    one, two, three = fill(disk, 3)
    disk.touch([one.id, three.id, "ffff"], 5000.0)
    disk.touch([one.id], 6000.0)
    disk.remove(three.id)
    used = {one.id: 6000.0, two.id: two.created_s}
    assert disk.last_used() == used
    again = disks.open(folder, clean=False)
    assert again.last_used() == used
    disks.close()
    (folder / "index.db").unlink()
    assert disks.open(folder).last_used() == {each.id: each.created_s for each in (one, two)}


def test_b029_the_whole_folder_is_counted(disks: Disks, disk: Disk, folder: Path) -> None:
    disk.put_namespace(ROOT, IDENTITY)
    one, two, *_ = fill(disk, 10)
    assert disk.used_bytes == physical_bytes(folder)
    disk.remove(one.id)
    disk.quarantine(two.id)
    (folder / "note.txt").write_text("x" * 10_000)
    again = disks.open(folder)
    assert again.used_bytes == physical_bytes(folder)


def test_the_store_keeps_its_id(disks: Disks, disk: Disk, folder: Path) -> None:
    assert disk.store_id
    assert disks.open(folder).store_id == disk.store_id


def test_nobody_else_may_look(disk: Disk, folder: Path) -> None:
    disk.put_namespace(ROOT, IDENTITY)
    fill(disk, 1)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in everything(folder) if path.is_dir()}
    assert modes == {0o700}
    modes = {stat.S_IMODE(path.stat().st_mode) for path in everything(folder) if path.is_file()}
    assert modes == {0o600}


def test_b032_an_object_is_invisible_until_it_is_whole(disks: Disks, folder: Path) -> None:
    files = HeldFiles()
    disk = disks.open(folder, files)
    stored, payload = make_stored(1)
    writer = threading.Thread(target=disk.write, args=[stored, payload])
    writer.start()
    assert files.is_held.wait(30)
    try:
        assert disk.objects() == []
        assert object_files(folder) == {}
        with pytest.raises(FileNotFoundError):
            read(disk, stored)
        with pytest.raises(DiskUnavailable, match="another one owns it"):
            Disk.open(folder)
    finally:
        files.go_on.set()
        writer.join()
    assert read(disk, stored) == payload


def test_b032_readers_beside_a_writer_see_whole_objects_only(disk: Disk) -> None:
    made = {stored.id: bytes(payload) for stored, payload in map(make_stored, range(30))}
    wrong: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            for stored in disk.objects():
                try:
                    if made[stored.id] != read(disk, stored):
                        wrong.append(stored.id)
                except FileNotFoundError:
                    pass  # removed meanwhile

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(30):
        stored, payload = make_stored(number)
        disk.write(stored, payload)
        if number % 3 == 0:
            disk.remove(stored.id)
    done.set()
    for reader in readers:
        reader.join()
    assert wrong == []
    assert len(disk.objects()) == 20


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["preallocate", "write", "mkdir", "fdatasync", "link"])
def test_a_full_disk_is_told_apart(disks: Disks, folder: Path, call: str, code: int) -> None:
    files = FailingFiles()
    disk = disks.open(folder, files)
    files.fail_all(call, code=code)
    with pytest.raises(DiskFull):
        disk.write(*make_stored(1))
    files.fail_all(call, code=errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        disk.write(*make_stored(1))
    assert not isinstance(caught.value, DiskFull)


def test_reading_goes_on_when_the_disk_is_full(disks: Disks, folder: Path) -> None:
    files = FailingFiles()
    disk = disks.open(folder, files)
    (stored,) = fill(disk, 1)
    files.fail_all("preallocate", "write", "mkdir", "link", code=errno.ENOSPC)
    with pytest.raises(DiskFull):
        disk.write(*make_stored(2))
    with pytest.raises(DiskFull):
        disk.put_namespace(ROOT, IDENTITY)
    assert read(disk, stored)


def calls_of_a_write(disks: Disks, folder: Path) -> list[str]:
    files = FailingFiles()
    disk = disks.open(folder, files)
    files.made.clear()
    disk.write(*make_stored(1))
    return list(files.made)


def test_a_name_is_given_after_the_content_and_before_the_answer_is_synced(
    disks: Disks, folder: Path
) -> None:
    calls = calls_of_a_write(disks, folder)
    steps = ("preallocate", "write", "fdatasync", "link", "unlink")
    assert [call for call in calls if call in steps] == [
        "preallocate",
        "write",
        "write",
        "fdatasync",
        "link",
        "unlink",
    ]
    assert calls.index("fsync_dir", calls.index("link")) < calls.index("unlink")


def test_report_2_b026_a_write_that_fails_anywhere_is_not_listed_and_can_be_repeated(
    disks: Disks,
    tmp_path: Path,
) -> None:
    stored, payload = make_stored(1)
    calls = calls_of_a_write(disks, tmp_path / "calls")
    assert {"preallocate", "write", "fdatasync", "link", "unlink", "fsync_dir"} <= set(calls)
    for number, call in enumerate(calls):
        folder = tmp_path / f"{number}-{call}"
        files = FailingFiles()
        disk = disks.open(folder, files)
        files.fail_number(number, errno.EIO)
        try:
            disk.write(stored, payload)
            listed = True
        except OSError:
            listed = False
        files.heal()
        assert [each.id for each in disk.objects()] == [stored.id] * listed, call
        disk.write(stored, payload)
        assert read(disk, stored) == payload, call
        again = disks.open(folder, clean=False)
        assert read(again, stored) == payload, call
        assert len(object_files(folder)) == 1, call
        assert [*(folder / "tmp").iterdir()] == [], call


def test_a_failed_write_takes_no_room(disks: Disks, folder: Path) -> None:
    files = FailingFiles()
    disk = disks.open(folder, files)
    disk.write(*make_stored(1))
    before = disk.used_bytes
    files.fail_all("fdatasync", code=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        disk.write(*make_stored(1000, (5000,)))
    files.heal()
    assert disk.used_bytes - before <= ALIGN  # folders and the index's journal may have grown
    assert disk.used_bytes == physical_bytes(folder)


def test_a_removed_file_that_has_another_name_still_takes_its_room(
    disks: Disks, folder: Path
) -> None:
    files = FailingFiles()
    disk = disks.open(folder, files)
    stored, payload = make_stored(1)
    files.fail_all("unlink", code=errno.EIO)
    disk.write(stored, payload)
    files.heal()
    disk.remove(stored.id)
    assert len([*(folder / "tmp").iterdir()]) == 1
    assert disk.used_bytes == physical_bytes(folder)


def test_a_disk_without_links_serves_too(disks: Disks, folder: Path) -> None:
    files = FailingFiles()
    files.fail_all("link", code=errno.EPERM)
    disk = disks.open(folder, files)
    stored, payload = make_stored(1)
    disk.write(stored, payload)
    assert read(disks.open(folder), stored) == payload


def test_an_index_that_fails_stops_nothing(disks: Disks, folder: Path) -> None:
    disk = disks.open(folder)
    (folder / "index.db").write_bytes(b"garbage" * 1000)
    (folder / "index.db-wal").unlink(missing_ok=True)
    made = fill(disk, 50)
    disk.touch([made[0].id], 1.0)
    disk.remove(made[1].id)
    disk.flush()
    again = disks.open(folder)
    assert again.objects() == [made[0], *made[2:]]
    assert [read(again, stored) for stored in again.objects()]
