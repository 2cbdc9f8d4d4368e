"""Moves payloads and takes their checksums, off the interpreter's lock."""

import ctypes
from collections.abc import Sequence

import xxhash

from bramley.cachestore.objects import padded

# A piece stays in the processor's cache between its copy and its checksum.
_PIECE = 256 << 10


def copy(
    target: memoryview, target_address: int, source_address: int, sizes: Sequence[int]
) -> list[bytes]:
    """Copy parts, each padded to ALIGN, and take the checksums of the copies.

    Args:
        target: of all parts; only its owner can write it.
        target_address: of its first byte.
        source_address: of the parts, whose owner may be writing them still.
        sizes: of the parts, without padding.

    Returns:
        xxh3-128 of each part as it now is in ``target``.
    """
    checksums: list[bytes] = []
    start = 0
    for size in sizes:
        digest = xxhash.xxh3_128()
        end = start + size
        for at in range(start, end, _PIECE):
            piece = min(_PIECE, end - at)
            ctypes.memmove(target_address + at, source_address + at, piece)
            digest.update(target[at : at + piece])
        padding = padded(size) - size
        ctypes.memset(target_address + end, 0, padding)
        checksums.append(digest.digest())
        start = end + padding
    return checksums


def clear_padding(payload: memoryview, sizes: Sequence[int]) -> None:
    """Zero what follows each part up to ALIGN: the memory was somebody else's before."""
    start = 0
    for size in sizes:
        end, start = start + size, start + padded(size)
        payload[end:start] = bytes(start - end)


def checksums_of(payload: memoryview, sizes: Sequence[int]) -> list[bytes]:
    """Take the checksums of parts, each padded to ALIGN."""
    checksums: list[bytes] = []
    start = 0
    for size in sizes:
        checksums.append(xxhash.xxh3_128_digest(payload[start : start + size]))
        start += padded(size)
    return checksums
