"""Logits of many texts on the disk, bit for bit as their model made them."""

import shutil
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SPARE_BYTES = 1 << 30  # of the disk, left to others


class NoRoom(OSError):
    """The disk has not the room."""


class Kept:
    """A file with a place for every position; memory holds what is looked at.

    bfloat16, which NumPy does not know, is kept as its bits.

    Args:
        file: made anew.
        lengths: positions of each text.
        vocabulary: width of the logits.
        dtype: as MLX names it: "float32", "float16" or "bfloat16".

    Raises:
        NoRoom: there is no room for all of it.
    """

    def __init__(self, file: Path, lengths: Sequence[int], vocabulary: int, dtype: str) -> None:
        self.vocabulary = vocabulary
        self._firsts = [0, *accumulate(lengths)]
        self._dtype = dtype
        stored = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)
        shape = (self._firsts[-1], vocabulary)
        needed = shape[0] * shape[1] * stored.itemsize
        if shutil.disk_usage(file.parent).free < needed + SPARE_BYTES:
            size = f"{needed / 1e9:.1f} GB"
            raise NoRoom(f"{file.parent} has no room for {size} of the reference's scores")
        self._rows: np.memmap[Any, Any] = np.memmap(file, stored, "w+", shape=shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the file."""
        return self._rows.nbytes

    def write(self, text: int, first: int, bits: NDArray[Any]) -> None:
        """Keep the logits of a text's positions from ``first`` on, as they are stored."""
        start = self._firsts[text] + first
        assert start + len(bits) <= self._firsts[text + 1]
        self._rows[start : start + len(bits)] = bits

    def read(self, text: int, first: int, count: int) -> NDArray[np.float32]:
        """Read so many positions of a text back, (count, vocabulary)."""
        start = self._firsts[text] + first
        return widened(self._rows[start : start + count], self._dtype)


def widened(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Make float32 of logits as they are stored; nothing is lost."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32)
