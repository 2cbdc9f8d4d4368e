"""Objects for the cache store's tests: made from a number, the same in every process."""

import hashlib
import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import xxhash

from bramley.cachestore.disk import Disk
from bramley.cachestore.files import Files
from bramley.cachestore.keys import HASH_BYTES, Identity, chain, root
from bramley.cachestore.objects import BLOCK, Part, StoredObject, padded

IDENTITY = Identity(
    weights_digest="weights",
    config_digest="config",
    tokenizer_digest="tokenizer",
    kv_scheme=("full:bfloat16",),
    layout="block",
    numerics_epoch="1",
)
OTHER_IDENTITY = Identity(
    weights_digest="other",
    config_digest="config",
    tokenizer_digest="tokenizer",
    kv_scheme=("full:bfloat16",),
    layout="block",
    numerics_epoch="1",
)
ROOT = root(IDENTITY)
OTHER_ROOT = root(OTHER_IDENTITY)


def tokens(number: int, count: int) -> bytes:
    """Tokens as they are kept: little-endian uint32."""
    return struct.pack(f"<{count}I", *(number * 1000 + place for place in range(count)))


def make_stored(
    number: int,
    sizes: tuple[int, ...] = (5000, 20_000),
    *,
    name: bytes = ROOT,
    parent: StoredObject | None = None,
) -> tuple[StoredObject, memoryview]:
    """Make an extent and its payload.

    Args:
        number: names and fills it.
        sizes: bytes of each part.
        name: the namespace's root.
        parent: what it follows.

    Returns:
        All of it but its payload, and the payload.
    """
    own = tokens(number, BLOCK * len(sizes))
    follows = name if parent is None else parent.chain
    names = chain(follows, own)
    fill = random.Random(number)  # noqa: S311
    payload = bytearray()
    parts: list[Part] = []
    for place, size in enumerate(sizes):
        data = fill.randbytes(size)
        parts.append(
            Part(
                chain=names[place * HASH_BYTES : (place + 1) * HASH_BYTES],
                tokens=BLOCK,
                nbytes=size,
                checksum=xxhash.xxh3_128_digest(data),
            )
        )
        payload += data.ljust(padded(size), b"\0")
    stored = StoredObject(
        id=hashlib.sha256(f"{number} {name.hex()}".encode()).hexdigest()[:32],
        root=name,
        kind="extent",
        group="kv",
        parent=follows,
        first_token=0 if parent is None else parent.first_token + parent.tokens,
        token_ids_le=own,
        parts=tuple(parts),
        header=b"arrays",
        session_key=f"session {number}",
        created_s=1000.0 + number,
    )
    return stored, memoryview(payload)


class Disks:
    """Opens disks, each after closing the last of the same folder."""

    def __init__(self) -> None:
        self._open: dict[Path, Disk] = {}

    def open(self, folder: Path, files: Files | None = None, *, clean: bool = True) -> Disk:
        """Open a disk; ``clean`` says how the last of the folder is closed."""
        if folder in self._open:
            self._open.pop(folder).close(clean=clean)
        self._open[folder] = Disk.open(folder, files)
        return self._open[folder]

    def close(self, *, clean: bool = False) -> None:
        """Close all."""
        for disk in self._open.values():
            disk.close(clean=clean)
        self._open.clear()


def fill(disk: Disk, count: int) -> list[StoredObject]:
    """Write objects 0 to ``count`` - 1."""
    made: list[StoredObject] = []
    for number in range(count):
        stored, payload = make_stored(number)
        disk.write(stored, payload)
        made.append(stored)
    return made


def read(disk: Disk, stored: StoredObject) -> bytes:
    """Read a whole object."""
    target = memoryview(bytearray(stored.payload_bytes))
    disk.read_into(stored.id, 0, len(stored.parts) - 1, target)
    return bytes(target)


def object_files(folder: Path) -> dict[str, Path]:
    """Files of the objects by id."""
    return {path.stem: path for path in folder.glob("ns/*/*/*.kvx")}


def physical_bytes(folder: Path) -> int:
    """Bytes that a folder takes, as ``du`` counts them."""
    return sum(path.lstat().st_blocks * 512 for path in everything(folder))


def everything(folder: Path) -> Iterator[Path]:
    """A folder and all that is in it."""
    for path, _, files in os.walk(folder):
        yield Path(path)
        yield from (Path(path) / file for file in files)
