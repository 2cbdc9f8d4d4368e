"""Disks that are closed when their test is over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.stored import Disks


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a store is, or will be."""
    return tmp_path / "store"


@pytest.fixture
def disks() -> Iterator[Disks]:
    """Open disks, and close those that a test leaves open."""
    disks = Disks()
    yield disks
    disks.close()
