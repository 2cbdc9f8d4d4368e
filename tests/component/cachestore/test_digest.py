"""What a model's files contain, remembered."""

import hashlib
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bramley.cachestore.digest import file_digest, weights_digest


class Readings:
    """Counts the files whose content is hashed.

    Attributes:
        count: of them.
        after: called after each.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.after = lambda: None
        self._digest = hashlib.file_digest
        monkeypatch.setattr(hashlib, "file_digest", self)

    def __call__(self, *arguments: Any) -> Any:
        self.count += 1
        digest = self._digest(*arguments)
        self.after()
        return digest


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    return Readings(monkeypatch)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with two weight files, and others."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model-1.safetensors", "model-2.safetensors", "config.json", "README.md"):
        (folder / name).write_bytes(name.encode() * 100)
    settle(folder)
    return folder


@pytest.fixture
def memo(tmp_path: Path) -> Path:
    return tmp_path / "memo" / "weights.json"


def settle(folder: Path) -> None:
    """Wait until the next change of a file surely has another time."""
    last_ns = max(path.stat().st_ctime_ns for path in folder.iterdir())
    while time.time_ns() - last_ns < 60_000_000:
        time.sleep(0.01)


def test_a_hit_reads_no_weights(model: Path, memo: Path, readings: Readings) -> None:
    first = weights_digest(model, memo)
    assert readings.count == 2
    assert weights_digest(model, memo) == first
    assert readings.count == 2


def test_the_digest_is_of_weights_alone(model: Path, memo: Path) -> None:
    first = weights_digest(model, memo)
    (model / "README.md").write_text("changed")
    assert weights_digest(model, memo) == first


def test_the_digest_does_not_depend_on_the_folder(model: Path, memo: Path) -> None:
    first = weights_digest(model, memo)
    moved = model.rename(model.parent / "elsewhere")
    assert weights_digest(moved, memo) == first


def grow(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def change_in_place(file: Path) -> None:
    stat = file.stat()
    with file.open("r+b") as opened:
        opened.write(b"X")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # only ctime tells


def replace(file: Path) -> None:
    stat = file.stat()
    new = file.with_suffix(".new")
    new.write_bytes(file.read_bytes()[::-1])
    os.utime(new, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    new.replace(file)


def rename(file: Path) -> None:
    file.rename(file.with_name("model-9.safetensors"))


def add(file: Path) -> None:
    file.with_name("model-9.safetensors").write_bytes(b"")


@pytest.mark.parametrize("change", [grow, change_in_place, replace, rename, add, Path.unlink])
def test_a_change_of_any_kind_is_noticed(model: Path, memo: Path, change: Any) -> None:
    first = weights_digest(model, memo)
    change(model / "model-1.safetensors")
    assert weights_digest(model, memo) != first


def test_names_and_contents_do_not_run_together(tmp_path: Path) -> None:
    digests: set[str] = set()
    for number, files in enumerate(({"a": b"bc", "d": b""}, {"a": b"b", "cd": b""}, {"a": b"bcd"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, content in files.items():
            (folder / f"{name}.safetensors").write_bytes(content)
        digests.add(weights_digest(folder, tmp_path / "memo"))
    assert len(digests) == 3


def test_nothing_is_remembered_if_a_file_changes_meanwhile(
    model: Path, memo: Path, readings: Readings
) -> None:
    readings.after = lambda: grow(model / "model-1.safetensors")
    first = weights_digest(model, memo)
    readings.after = lambda: None
    assert "model-1.safetensors" not in memo.read_text()
    settle(model)
    assert weights_digest(model, memo) != first


def test_a_file_that_has_just_changed_is_remembered_too(
    model: Path, memo: Path, readings: Readings
) -> None:
    grow(model / "model-1.safetensors")
    weights_digest(model, memo)
    before = readings.count
    weights_digest(model, memo)
    assert readings.count == before


def test_nothing_is_remembered_of_a_file_whose_time_lies_ahead(
    model: Path, memo: Path, readings: Readings
) -> None:
    ahead_s = time.time() + 1000
    os.utime(model / "model-1.safetensors", (ahead_s, ahead_s))
    weights_digest(model, memo)
    before = readings.count
    weights_digest(model, memo)
    assert readings.count == before + 1


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff\xfe", b"[]", b'{"known":[],"sha256":"x"}'])
def test_a_damaged_memo_is_no_memo(model: Path, memo: Path, damage: bytes) -> None:
    first = weights_digest(model, memo)
    memo.write_bytes(damage)
    assert weights_digest(model, memo) == first
    assert memo.read_bytes() != damage


def test_a_changed_digit_in_the_memo_is_noticed(model: Path, memo: Path) -> None:
    first = weights_digest(model, memo)
    text = memo.read_text()
    place = text.index('"sha256":"', text.index("known")) + 20
    other = "0" if text[place] != "0" else "1"
    memo.write_text(text[:place] + other + text[place + 1 :])
    assert weights_digest(model, memo) == first


def test_a_memo_that_cannot_be_written_costs_only_time(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert weights_digest(model, tmp_path / "file" / "memo") == weights_digest(
        model, tmp_path / "memo"
    )


def test_writers_at_the_same_time_leave_a_whole_memo(
    model: Path, memo: Path, readings: Readings
) -> None:
    folders = [model]
    for number in range(6):
        folder = model.parent / f"model-{number}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes([number]))
        settle(folder)
        folders.append(folder)
    found: dict[Path, str] = {}

    def digest(folder: Path) -> None:
        found[folder] = weights_digest(folder, memo)

    threads = [threading.Thread(target=digest, args=[folder]) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {folder: weights_digest(folder, memo) for folder in folders} == found
    before = readings.count
    for folder in folders:
        weights_digest(folder, memo)
    assert readings.count == before
    assert [path.name for path in memo.parent.iterdir()] == [memo.name]


def test_small_files_have_one_digest_in_any_order(tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text("1")
    absent = file_digest([one, other])
    other.write_text("")
    empty = file_digest([one, other])
    assert file_digest([other, one]) == empty
    other.write_text("2")
    assert len({absent, empty, file_digest([one, other]), file_digest([one])}) == 4


def test_a_folder_without_weights_has_no_digest(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no weight files"):
        weights_digest(tmp_path, tmp_path / "memo")
