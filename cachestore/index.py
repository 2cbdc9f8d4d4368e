"""The index: what the files say and when each was last used, for a quick start.

An accelerator and nothing else: it may be absent, stale or garbage at any time. A row counts
only if it is whole and its file still has the row's size, inode and time. No error leaves
this module; after one, the index is not trusted at the next start.
"""

import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import xxhash

from bramley.cachestore.files import Files
from bramley.cachestore.format import FileEntry
from bramley.common.logs import facts

log = logging.getLogger(__name__)

_SCHEMA = 1
WAL_PAGES = 64  # it counts against the budget, and evicting and using let it grow
_CREATE = (
    "CREATE TABLE objects (id TEXT PRIMARY KEY, entry BLOB, checksum BLOB)",
    "CREATE TABLE used (id TEXT PRIMARY KEY, at_s REAL)",
    "CREATE TABLE state (name TEXT PRIMARY KEY, value INTEGER)",
    f"PRAGMA user_version = {_SCHEMA}",
)
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?)"
_USE = "INSERT OR REPLACE INTO used VALUES (?, ?)"
_DROP = ("DELETE FROM objects WHERE id = ?", "DELETE FROM used WHERE id = ?")
_CLEAN = "INSERT OR REPLACE INTO state VALUES ('clean', ?)"
_NOTE = "INSERT OR REPLACE INTO state VALUES (?, ?)"

_Write: TypeAlias = tuple[str, Iterable[tuple[object, ...]]]
T = TypeVar("T")


class Index:
    """One SQLite file; any thread may call."""

    def __init__(self, path: Path, files: Files) -> None:
        """Open it, anew if what is there cannot be used."""
        self._lock = threading.Lock()
        self._sound = True
        self._db = _open(path, files)
        self.is_trusted = self._read("SELECT value FROM state WHERE name = 'clean'") == [(1,)]
        self._write((_CLEAN, [(0,)]))

    def entries(self) -> dict[str, FileEntry]:
        """Read the whole rows by id."""
        found: dict[str, FileEntry] = {}
        for row in self._read("SELECT entry, checksum FROM objects"):
            entry = _entry(row)
            if entry is not None:
                found[entry.object.id] = entry
        return found

    def used(self) -> dict[str, float]:
        """Read when each object was last used."""
        rows = self._read("SELECT id, at_s FROM used WHERE typeof(id) = 'text'")
        return {object_id: at_s for object_id, at_s in rows if isinstance(at_s, float)}

    def put(self, entry: FileEntry) -> None:
        """Add an object."""
        self._write((_PUT, [_row(entry)]))

    def drop(self, object_id: str) -> None:
        """Forget an object."""
        self._write(*((sql, [(object_id,)]) for sql in _DROP))

    def touch(self, object_ids: Iterable[str], at_s: float) -> None:
        """Set when objects were last used."""
        self._write((_USE, [(object_id, at_s) for object_id in object_ids]))

    def note(self, notes: dict[str, str]) -> None:
        """Keep a few words for the next start."""
        self._write((_NOTE, [(name, f"text {value}") for name, value in notes.items()]))

    def noted(self, name: str) -> str:
        """Read what was noted; empty if nothing was."""
        rows = self._read("SELECT name, value FROM state WHERE typeof(value) = 'text'")
        found = {str(key): str(value) for key, value in rows}
        return found.get(name, "").removeprefix("text ")

    def mend(self, known: dict[str, FileEntry], entries: dict[str, FileEntry]) -> None:
        """Make the rows, of which ``known`` are whole, tell of ``entries`` and of no other."""
        rows = self._read("SELECT id FROM objects UNION SELECT id FROM used")
        gone = [row for row in rows if row[0] not in entries]
        new = [entry for object_id, entry in entries.items() if known.get(object_id) != entry]
        if gone or new:
            self._write(*((sql, gone) for sql in _DROP), (_PUT, map(_row, new)))

    def flush(self) -> None:
        """Put all rows on the medium."""
        self._do(_flush)

    def close(self, *, clean: bool) -> None:
        """Close it; ``clean`` says that its rows tell of all files."""
        if clean and self._sound:
            self._write((_CLEAN, [(1,)]))
        self._do(sqlite3.Connection.close)
        self._db = None

    def _read(self, sql: str) -> list[tuple[Any, ...]]:
        return self._do(lambda db: db.execute(sql).fetchall()) or []

    def _write(self, *writes: _Write) -> None:
        """Do all of it in one transaction."""

        def write(db: sqlite3.Connection) -> None:
            with db:
                db.execute("BEGIN")
                for sql, rows in writes:
                    db.executemany(sql, rows)

        self._do(write)

    def _do(self, action: Callable[[sqlite3.Connection], T]) -> T | None:
        with self._lock:
            if self._db is None:
                return None
            try:
                return action(self._db)
            except sqlite3.Error as error:
                if self._sound:
                    log.warning("the index of the cache store failed", extra=facts(error=error))
                self._sound = False
                return None


def _row(entry: FileEntry) -> tuple[str, bytes, bytes]:
    body = msgspec.msgpack.encode(entry)
    return entry.object.id, body, xxhash.xxh3_128_digest(body)


def _entry(row: tuple[Any, ...]) -> FileEntry | None:
    match row:
        case (bytes(body), bytes(checksum)) if xxhash.xxh3_128_digest(body) == checksum:
            return msgspec.msgpack.decode(body, type=FileEntry)
        case _:
            return None  # its file will tell


def _flush(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA fullfsync = 1")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute("PRAGMA fullfsync = 0")


def _open(path: Path, files: Files) -> sqlite3.Connection | None:
    """Open the file, or a new one in its place; None if neither can be."""
    try:
        return _connect(path, files)
    except (sqlite3.Error, OSError) as error:
        log.warning("the index of the cache store is made anew", extra=facts(error=error))
    try:
        for beside in ("", "-wal", "-shm", "-journal"):
            files.unlink(path.with_name(path.name + beside))
        return _connect(path, files)
    except (sqlite3.Error, OSError) as error:
        log.warning("the cache store has no index", extra=facts(error=error))
        return None


def _connect(path: Path, files: Files) -> sqlite3.Connection:
    files.close(files.open(path, os.O_RDWR | os.O_CREAT))  # SQLite would make it 0644
    db = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one owner: no file of shared memory
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {WAL_PAGES * 4096}")
        if db.execute("PRAGMA quick_check(1)").fetchall() != [("ok",)]:
            raise sqlite3.DatabaseError("it is damaged")
        if db.execute("PRAGMA user_version").fetchone() != (_SCHEMA,):
            for name in ("objects", "used", "state"):
                db.execute(f"DROP TABLE IF EXISTS {name}")
            for statement in _CREATE:
                db.execute(statement)
    except sqlite3.Error:
        db.close()
        raise
    return db
