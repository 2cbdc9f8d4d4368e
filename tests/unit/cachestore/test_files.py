"""macOS needs other calls for the same promises."""

import errno
import fcntl
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bramley.cachestore.files import Files

BARRIER, FULL = 85, 51


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is asked of the system, on what says that it is macOS."""
    asked: list[Any] = []
    monkeypatch.setattr(sys, "platform", "darwin")

    def ask(_fd: int, call: int, *_: object) -> None:
        asked.append(call)

    def sync(_fd: int) -> None:
        asked.append("fsync")

    monkeypatch.setattr(fcntl, "fcntl", ask)
    monkeypatch.setattr(os, "fsync", sync)
    return asked


def refuse(*_: object) -> None:
    raise OSError(errno.ENOTSUP, "not here")


def test_macos_orders_writes_by_a_barrier(asked: list[Any]) -> None:
    Files().fdatasync(0)
    assert asked == [BARRIER]


def test_macos_flushes_the_drive_when_told_to(asked: list[Any]) -> None:
    Files().full_sync(0)
    assert asked == [FULL]


@pytest.mark.parametrize("call", [Files.fdatasync, Files.full_sync])
def test_macos_falls_back_where_the_file_system_has_neither(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, call: Any
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    call(Files(), 0)
    assert asked == ["fsync"]


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_file_has_its_size_where_room_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    Files().preallocate(fd, 5000)
    assert os.fstat(fd).st_size == 5000
    os.close(fd)
