"""An object as a file: a valid safetensors file whose payload can be read by offset alone.

    8 bytes       length of the header
    header        JSON, padded with blanks until the payload starts on ALIGN
    payload       per part: entry ``b0000`` (U8), then, up to ALIGN, entry ``_p0000``

The header starts the same way in every version: format, least version a reader must know,
and xxh3-128 of everything before the payload, taken with zeros in its own place. So a newer
file is told from a damaged one. Files never change once they have their name.
"""

import errno
import json
import os
import re
from pathlib import Path

import msgspec
import xxhash

from bramley.cachestore.files import Files
from bramley.cachestore.objects import ALIGN, StoredObject, padded

FORMAT = 1
SUFFIX = ".kvx"

_START = '{{"__metadata__":{{"bramley":"{format}","reader":"{reader}","xxh3":"{xxh3:0>32}"'
_STARTS = re.compile(
    rb'\{"__metadata__":\{"bramley":"\d+","reader":"(\d+)","xxh3":"([0-9a-f]{32})"'
)
_LENGTH_BYTES = 8
_HEADER_MAX = 64 << 20


class Damaged(OSError):
    """The bytes are not what was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(errno.EBADMSG, why, str(path))


class NotOurs(Exception):
    """An intact file that is not for us to judge: of a newer format, or of another program."""

    def __init__(self, *, newer: bool) -> None:
        super().__init__("of a newer format" if newer else "of another program")
        self.newer = newer


class _Metadata(msgspec.Struct):
    object: str = ""


class _Header(msgspec.Struct):
    metadata: _Metadata = msgspec.field(name="__metadata__")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An object and its file, as far as reading needs to know it.

    Attributes:
        start: of the payload in the file.
        size: of the file.
        mtime_ns: with ``inode`` and ``size``, tells the file from one put in its place.
    """

    object: StoredObject
    start: int
    size: int
    mtime_ns: int
    inode: int

    def is_of(self, stat: os.stat_result) -> bool:
        """Whether the file with this stat is the one described."""
        theirs = (stat.st_size, stat.st_mtime_ns, stat.st_ino)
        return theirs == (self.size, self.mtime_ns, self.inode)


def encode_header(stored: StoredObject) -> bytes:
    """All of the file that comes before the payload."""
    tensors: dict[str, object] = {}
    start = 0
    for number, part in enumerate(stored.parts):
        middle, end = start + part.nbytes, start + padded(part.nbytes)
        tensors[f"b{number:04}"] = _tensor(start, middle)
        if end > middle:
            tensors[f"_p{number:04}"] = _tensor(middle, end)
        start = end
    text = json.dumps(msgspec.json.encode(stored).decode())
    head = _START.format(format=FORMAT, reader=FORMAT, xxh3="") + f',"object":{text}}},'
    header = head.encode() + msgspec.json.encode(tensors)[1:]
    size = padded(_LENGTH_BYTES + len(header))
    length = (size - _LENGTH_BYTES).to_bytes(_LENGTH_BYTES, "little")
    whole = bytearray((length + header).ljust(size))
    checksum = xxhash.xxh3_128_hexdigest(whole).encode()
    place = slice(*_begins(whole).span(2))
    whole[place] = checksum
    return bytes(whole)


def file_bytes(stored: StoredObject) -> int:
    """Estimate how large an object's file becomes; rather too much."""
    words = len(stored.token_ids_le) + len(stored.header)
    return stored.payload_bytes + padded(2 * words + 512 * (1 + len(stored.parts)))


def _tensor(start: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [end - start], "data_offsets": [start, end]}


def _begins(header: bytes | bytearray) -> re.Match[bytes]:
    begins = _STARTS.match(header, _LENGTH_BYTES)
    if begins is None:
        raise ValueError("it does not begin as an object")
    return begins


def decode_header(header: bytes) -> StoredObject:
    """Read what ``encode_header`` wrote.

    Returns:
        The object.

    Raises:
        NotOurs: it is intact, but of a newer format or of another program.
        ValueError: it is damaged.
    """
    if _is_foreign(header):
        raise NotOurs(newer=False)
    begins = _begins(header)
    blank = bytearray(header)
    blank[slice(*begins.span(2))] = b"0" * 32
    if xxhash.xxh3_128_hexdigest(blank).encode() != begins[2]:
        raise ValueError("its header does not match its checksum")
    if int(begins[1]) > FORMAT:
        raise NotOurs(newer=True)
    try:
        text = msgspec.json.decode(header[_LENGTH_BYTES:], type=_Header).metadata.object
        return msgspec.json.decode(text, type=StoredObject)
    except msgspec.DecodeError as error:
        raise ValueError(f"its header cannot be read: {error}") from error


def _is_foreign(header: bytes) -> bool:
    """Whether it is a sound safetensors header that never was ours."""
    if _STARTS.match(header, _LENGTH_BYTES):
        return False
    try:
        tensors = msgspec.json.decode(header[_LENGTH_BYTES:], type=dict[str, dict[str, object]])
    except (msgspec.DecodeError, ValueError):
        return False
    return "bramley" not in tensors.get("__metadata__", {})


def write_file(files: Files, path: Path, stored: StoredObject, payload: memoryview) -> FileEntry:
    """Write an object to a new file, and sync its content.

    Returns:
        The entry of the file, also under other names.

    Raises:
        ValueError: the payload is not as long as the object says.
    """
    if payload.nbytes != stored.payload_bytes:
        raise ValueError(f"payload of {payload.nbytes} bytes for {stored.payload_bytes}")
    header = encode_header(stored)
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        files.preallocate(fd, len(header) + payload.nbytes)
        files.write(fd, header, 0)
        files.write(fd, payload.cast("B"), len(header))
        files.fdatasync(fd)
        return _entry(stored, len(header), files.fstat(fd))
    finally:
        files.close(fd)


def _entry(stored: StoredObject, start: int, stat: os.stat_result) -> FileEntry:
    return FileEntry(
        object=stored,
        start=start,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        inode=stat.st_ino,
    )


def read_file(files: Files, path: Path) -> FileEntry:
    """Read a file's header and prove it; the payload is not read.

    Returns:
        The entry.

    Raises:
        NotOurs: it is to be left alone.
        Damaged: it is torn or changed.
    """
    fd = files.open(path, os.O_RDONLY)
    try:
        stat = files.fstat(fd)
        header = _read_header(files, fd, stat.st_size)
        stored = decode_header(header)
    except ValueError as error:
        raise Damaged(path, str(error)) from error
    finally:
        files.close(fd)
    if stat.st_size != len(header) + stored.payload_bytes:
        raise Damaged(path, f"it has {stat.st_size} bytes and not as many as its header says")
    return _entry(stored, len(header), stat)


def _read_header(files: Files, fd: int, size: int) -> bytes:
    """Read the length and the header."""
    start = bytearray(min(size, ALIGN))
    read = files.read_into(fd, memoryview(start), 0)
    length = _LENGTH_BYTES + int.from_bytes(start[:_LENGTH_BYTES], "little")
    if read < _LENGTH_BYTES or not _LENGTH_BYTES < length <= min(size, _HEADER_MAX):
        raise ValueError("it ends before its header does")
    rest = bytearray(max(0, length - len(start)))
    files.read_into(fd, memoryview(rest), len(start))
    return bytes((start + rest)[:length])


def read_parts(
    files: Files, path: Path, entry: FileEntry, parts: tuple[int, int], target: memoryview
) -> None:
    """Read a run of parts, with their padding, and prove each.

    Args:
        files: how to read.
        path: of the file.
        entry: of the file.
        parts: the first and the last of them.
        target: exactly as long as they are.

    Raises:
        Damaged: the file is too short, or a part does not match its checksum.
        ValueError: there are no such parts, or the target has another size.
    """
    first, last = parts
    wanted = entry.object.parts[first : last + 1]
    sizes = [padded(part.nbytes) for part in entry.object.parts]
    if not 0 <= first <= last < len(sizes) or target.nbytes != sum(sizes[first : last + 1]):
        raise ValueError(f"{target.nbytes} bytes are not parts {first} to {last}")
    target = target.cast("B")
    fd = files.open(path, os.O_RDONLY)
    try:
        if files.read_into(fd, target, entry.start + sum(sizes[:first])) < len(target):
            raise Damaged(path, "it ends too early")
    finally:
        files.close(fd)
    offset = 0
    for number, part in enumerate(wanted, first):
        if xxhash.xxh3_128_digest(target[offset : offset + part.nbytes]) != part.checksum:
            raise Damaged(path, f"part {number} does not match its checksum")
        offset += padded(part.nbytes)
