"""Remembers in which lane a model was found right, so that only its first start checks it.

What is kept is no answer but a digest of all that an answer depends on, and of the answer itself:
a damaged or foreign file tells nothing, and costs a check.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from bramley.cachestore.keys import framed
from bramley.worker.models.contract import Lane

KEPT = 256  # models, or states of one; the oldest are forgotten

DependsOn = Sequence[str]


def remembered(memo: Path, depends_on: DependsOn) -> Lane | None:
    """Return the lane that was found when all was as it is; None if it was never looked for."""
    known = set(_read(memo))
    return next((lane for lane in Lane if _digest(depends_on, lane) in known), None)


def remember(memo: Path, depends_on: DependsOn, lane: Lane) -> None:
    """Keep what was found.

    The file is replaced whole. What another process writes meanwhile may be lost, and is found
    again; where nothing can be written, nothing is remembered.
    """
    kept = [digest for digest in _read(memo) if digest != _digest(depends_on, lane)]
    text = msgspec.json.encode([*kept, _digest(depends_on, lane)][-KEPT:])
    try:
        memo.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd, name = tempfile.mkstemp(dir=memo.parent, prefix=memo.name)
    except OSError:
        return
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(text)
        os.replace(name, memo)
    except OSError:
        Path(name).unlink(missing_ok=True)


def code_digest(folders: Iterable[Path]) -> str:
    """Digest the Python files of some folders."""
    total = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.glob("*.py")):
            total.update(framed(path.name.encode()) + framed(path.read_bytes()))
    return total.hexdigest()


def _digest(depends_on: DependsOn, lane: Lane) -> str:
    parts = b"".join(framed(part.encode()) for part in (*depends_on, lane.value))
    return hashlib.sha256(parts).hexdigest()


def _read(memo: Path) -> list[str]:
    try:
        return msgspec.json.decode(memo.read_bytes(), type=list[str])
    except (OSError, ValueError, msgspec.DecodeError):
        return []
