"""B031: a folder that cannot be used is one error at the start, and none that ends anything."""

import errno
import shutil
import sys
from pathlib import Path

import pytest

from bramley.cachestore.disk import Disk, FolderGone
from bramley.cachestore.folder import DiskUnavailable
from support.failing_files import FailingFiles
from support.stored import IDENTITY, ROOT, Disks, fill, make_stored, read


@pytest.mark.parametrize("path", ["store", "missing/parents/store"])
def test_b031_a_missing_folder_is_made(disks: Disks, tmp_path: Path, path: str) -> None:
    disk = disks.open(tmp_path / path)
    (stored,) = fill(disk, 1)
    assert read(disk, stored)


def test_b031_a_linked_folder_is_used(disks: Disks, tmp_path: Path) -> None:
    (tmp_path / "drive").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "drive")
    fill(disks.open(tmp_path / "store"), 1)
    assert (tmp_path / "drive" / "STORE").exists()


@pytest.mark.parametrize("path", ["file", "file/store"])
def test_b031_a_file_in_its_place_is_an_error(disks: Disks, tmp_path: Path, path: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskUnavailable, match="cannot hold the cache store"):
        disks.open(tmp_path / path)


@pytest.mark.parametrize("name", ["ns", "tmp", "quarantine"])
def test_b031_a_file_in_a_folders_place_is_an_error(
    disks: Disks, tmp_path: Path, name: str
) -> None:
    (tmp_path / "STORE").touch()
    (tmp_path / name).touch()
    with pytest.raises(DiskUnavailable, match="it is no folder"):
        disks.open(tmp_path)


def test_a_folder_of_others_is_left_as_it_is(disks: Disks, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp" / "thesis.txt").touch()
    with pytest.raises(DiskUnavailable, match="it is no store, and holds 'tmp'"):
        disks.open(tmp_path)
    assert {path.name for path in tmp_path.rglob("*")} == {"tmp", "thesis.txt"}
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_the_root_of_an_empty_volume_is_used(disks: Disks, tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / ".Trashes").mkdir()
    fill(disks.open(tmp_path), 1)


def test_a_store_that_lost_its_mark_is_used(disks: Disks, tmp_path: Path) -> None:
    (stored,) = fill(disks.open(tmp_path), 1)
    disks.close()
    (tmp_path / "STORE").unlink()
    assert read(disks.open(tmp_path), stored)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_b031_a_place_where_nothing_can_be_made_is_an_error(disks: Disks) -> None:
    with pytest.raises(DiskUnavailable):
        disks.open(Path("/proc/cachestore"))


@pytest.mark.parametrize("there", [False, True])
def test_b031_a_read_only_folder_is_an_error(disks: Disks, tmp_path: Path, there: bool) -> None:
    if there:
        disks.open(tmp_path / "store")
        disks.close()
    files = FailingFiles()
    files.fail_all("open", "mkdir", "write", "rename", "link", "unlink", code=errno.EROFS)
    with pytest.raises(DiskUnavailable, match="Read-only"):
        disks.open(tmp_path / "store", files)
    files.heal()
    disks.open(tmp_path / "store", files)  # and nothing is left locked


def test_b031_a_folder_that_goes_away_costs_only_its_content(disks: Disks, tmp_path: Path) -> None:
    disk = disks.open(tmp_path / "store")
    one, two = fill(disk, 2)
    shutil.rmtree(tmp_path / "store")
    with pytest.raises(FolderGone):
        disk.write(*make_stored(3))
    with pytest.raises(FolderGone):
        read(disk, one)
    with pytest.raises(FolderGone):
        disk.prove_header(one.id)
    with pytest.raises(FolderGone):
        disk.room()
    with pytest.raises(OSError, match="No such file"):
        disk.put_namespace(ROOT, IDENTITY)  # of objects that it has
    disk.remove(one.id)
    disk.quarantine(two.id)
    disk.touch([one.id], 1.0)
    assert disk.objects() == []
    assert disk.used_bytes >= 0
    with pytest.raises(FolderGone):
        disk.flush()
    disk.close(clean=True)
    assert not (tmp_path / "store").exists()


def test_a_folder_that_was_moved_away_and_replaced_is_not_the_one(
    disks: Disks, tmp_path: Path
) -> None:
    disk = disks.open(tmp_path / "store")
    (one,) = fill(disk, 1)
    (tmp_path / "store").rename(tmp_path / "moved")
    other = Disk.open(tmp_path / "store")
    with pytest.raises(FolderGone):
        read(disk, one)
    other.close(clean=True)
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "moved").rename(tmp_path / "store")
    assert read(disk, one)


@pytest.mark.parametrize("name", ["tmp", "quarantine", "ns", "ns/*", "ns/*/??"])
def test_b031_a_folder_inside_that_was_removed_is_made_again(
    disks: Disks, tmp_path: Path, name: str
) -> None:
    disk = disks.open(tmp_path)
    disk.put_namespace(ROOT, IDENTITY)
    one, two = fill(disk, 2)
    for path in tmp_path.glob(name):
        shutil.rmtree(path)
    disk.remove(one.id)
    disk.write(*make_stored(0))
    assert read(disk, one)
    disk.quarantine(one.id)
    fill(disk, 1)
    disk.remove(two.id)
    again = disks.open(tmp_path)
    assert again.objects() == [one]
    assert again.namespaces() == {ROOT: IDENTITY}
    assert len(list((tmp_path / "quarantine").iterdir())) == 1


def test_a_folder_has_one_owner(disks: Disks, tmp_path: Path) -> None:
    disks.open(tmp_path)
    with pytest.raises(DiskUnavailable, match="another one owns it"):
        Disk.open(tmp_path)
    disks.open(tmp_path)


def test_a_newer_store_is_left_alone(disks: Disks, tmp_path: Path) -> None:
    text = '{"format":2,"id":"ab","created_s":1.0}'
    (tmp_path / "STORE").write_text(text)
    with pytest.raises(DiskUnavailable, match="newer"):
        disks.open(tmp_path)
    assert (tmp_path / "STORE").read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["STORE"]


@pytest.mark.parametrize("text", ["", "{", "\0" * 500, '{"format":1}'])
def test_a_torn_store_file_costs_only_the_id(disks: Disks, tmp_path: Path, text: str) -> None:
    disk = disks.open(tmp_path)
    made = fill(disk, 2)
    disks.close()
    (tmp_path / "STORE").write_text(text)
    again = disks.open(tmp_path)
    assert again.objects() == made
    assert again.store_id != disk.store_id
    assert disks.open(tmp_path).store_id == again.store_id
