"""What a model's files contain, as one digest; remembered, so that weights are read once.

A memo is believed as long as every stamp of a file is as it was: path, device, inode, size,
and the times of its last change. A memo that is damaged or gone costs time, nothing else.
"""

import errno
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from bramley.cachestore.keys import framed

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.gguf", "*.npz")
_READERS = 4  # hashing lets the interpreter's lock go
# Two changes within one tick of the file system's clock leave the same stamp.
_SETTLED_NS = 50_000_000


class _Stamp(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class _Known(msgspec.Struct, frozen=True, kw_only=True):
    stamp: _Stamp
    sha256: str


class _Memo(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str  # of the text of ``known``
    known: msgspec.Raw


def weights_digest(folder: Path, memo: Path) -> str:
    """Digest the names and contents of a model's weight files.

    Args:
        folder: the model's, or an adapter's.
        memo: JSON file with the digests of files seen before; any number of folders and
            processes may share one.

    Returns:
        64 hex digits.

    Raises:
        FileNotFoundError: there are no weight files.
        OSError: a weight file cannot be read.
    """
    files = _weight_files(folder)
    if not files:
        raise FileNotFoundError(errno.ENOENT, "no weight files", str(folder))
    remembered = _read_memo(memo)
    digests, new = _digests(files, remembered)
    if new:
        _write_memo(memo, [*remembered.values(), *new])
    return _total(files, digests)


def remembered_digest(folder: Path, memo: Path) -> str | None:
    """Return what ``weights_digest`` would, if that needs no weights to be read."""
    files, remembered = _weight_files(folder), _read_memo(memo)
    known = [remembered.get(str(path.absolute())) for path in files]
    digests = [
        each.sha256
        for path, each in zip(files, known, strict=True)
        if each is not None and each.stamp == _stamp(path)
    ]
    return _total(files, digests) if files and len(digests) == len(files) else None


def file_digest(paths: Iterable[Path]) -> str:
    """Digest the names and contents of small files in the order of their names.

    A file that is not there counts as absent, which is not the same as empty.

    Returns:
        64 hex digits.
    """
    total = hashlib.sha256()
    for path in sorted(paths, key=lambda path: path.name):
        total.update(framed(path.name.encode()))
        try:
            total.update(b"\1" + framed(path.read_bytes()))
        except FileNotFoundError:
            total.update(b"\0")
    return total.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    return sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)})


def _total(files: Iterable[Path], digests: Iterable[str]) -> str:
    total = hashlib.sha256()
    for path, digest in zip(files, digests, strict=True):
        total.update(framed(path.name.encode()) + bytes.fromhex(digest))
    return total.hexdigest()


def _digests(files: list[Path], memo: dict[str, _Known]) -> tuple[list[str], list[_Known]]:
    """Digest each file; also what may be remembered beyond the memo."""
    new: list[_Known] = []

    def digest(path: Path) -> str:
        before = _stamp(path)
        known = memo.get(before.path)
        if known is not None and known.stamp == before:
            return known.sha256
        before, now_ns = _settled(path, before)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        settled = now_ns - max(before.mtime_ns, before.ctime_ns) > _SETTLED_NS
        if settled and _stamp(path) == before:
            new.append(_Known(stamp=before, sha256=sha256))
        return sha256

    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(digest, files)), new


def _settled(path: Path, stamp: _Stamp) -> tuple[_Stamp, int]:
    """Wait out the tick in which a file was written, as an import has just written its own.

    Returns:
        Its stamp then, and the time.
    """
    now_ns = time.time_ns()
    fresh_ns = max(stamp.mtime_ns, stamp.ctime_ns) + _SETTLED_NS - now_ns
    if fresh_ns < 0:
        return stamp, now_ns
    time.sleep(min(fresh_ns + 1_000_000, _SETTLED_NS) / 1e9)  # a time may lie far ahead
    return _stamp(path), time.time_ns()


def _stamp(path: Path) -> _Stamp:
    stat = path.stat()
    return _Stamp(
        path=str(path.absolute()),
        device=stat.st_dev,
        inode=stat.st_ino,
        size=stat.st_size,
        mtime_ns=stat.st_mtime_ns,
        ctime_ns=stat.st_ctime_ns,
    )


def _read_memo(memo: Path) -> dict[str, _Known]:
    """Read what is remembered, by path; a later entry wins."""
    try:
        read = msgspec.json.decode(memo.read_bytes(), type=_Memo)
        if hashlib.sha256(read.known).hexdigest() != read.sha256:
            return {}
        known = msgspec.json.decode(read.known, type=list[_Known])
    except (OSError, ValueError, msgspec.DecodeError):
        return {}
    return {item.stamp.path: item for item in known}


def _write_memo(memo: Path, known: list[_Known]) -> None:
    """Replace the memo whole; a concurrent writer's entries may be lost, and are made again."""
    latest = {item.stamp.path: item for item in known}
    text = msgspec.json.encode(list(latest.values()))
    content = _Memo(sha256=hashlib.sha256(text).hexdigest(), known=msgspec.Raw(text))
    try:
        memo.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=memo.parent, prefix=memo.name)
    except OSError:
        return  # nowhere to remember it
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(content))
        os.replace(name, memo)
    except OSError:
        Path(name).unlink(missing_ok=True)
