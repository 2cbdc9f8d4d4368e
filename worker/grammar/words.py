"""A row of a mask: a bit for each id, in words of 32. Ids beyond the row are passed over."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

ALL: Final = np.uint32(0xFFFFFFFF)


def allow(row: Words, number: int) -> None:
    """Set the bit of an id."""
    if number >> 5 < len(row):
        row[number >> 5] |= np.uint32(1 << (number & 31))


def forbid(row: Words, number: int) -> None:
    """Clear the bit of an id."""
    if number >> 5 < len(row):
        row[number >> 5] &= ~np.uint32(1 << (number & 31))


def is_allowed(row: Words, number: int) -> bool:
    """Tell whether the bit of an id is set."""
    return number >> 5 < len(row) and bool(row[number >> 5] >> np.uint32(number & 31) & 1)
