"""A value that follows its files."""

from pathlib import Path

import pytest

from bramley.common.errors import SettingsError
from bramley.common.reload import Reloaded


def test_a_file_that_was_open_to_others_is_read_once_its_mode_is_right(tmp_path: Path) -> None:
    file = tmp_path / "secret"

    def read() -> str:
        if file.stat().st_mode & 0o077:
            raise SettingsError("secret", "is open to others")
        return file.read_text()

    def write(text: str, mode: int) -> None:
        made = tmp_path / "made"
        made.write_text(text)
        made.chmod(mode)
        made.rename(file)

    write("old", 0o600)
    value = Reloaded([str(file)], read)
    write("new", 0o644)
    assert value.now() == "old"
    file.chmod(0o600)
    assert value.now() == "new"


def test_a_file_that_is_wrong_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "number"
    file.write_text("1")

    def read() -> int:
        text = file.read_text()
        if not text.isdecimal():
            raise SettingsError("number", "is none")
        return int(text)

    value = Reloaded([str(file)], read)
    file.write_text("more than one")
    assert [value.now() for _ in range(3)] == [1, 1, 1]
    assert len(caplog.records) == 1
    file.write_text("23")
    assert value.now() == 23
