"""What a store finds in its folder when it starts: the files are the truth.

``survey`` looks and changes nothing; ``recover`` then clears what writes left unfinished and
sets damaged files aside. Intact files of a newer format or of others stay as they are, and
nothing is removed for want of room.
"""

import contextlib
import logging
import re
import stat as modes
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from bramley.cachestore.files import on_disk
from bramley.cachestore.folder import FAN, Folder
from bramley.cachestore.format import Damaged, FileEntry, NotOurs, read_file
from bramley.cachestore.index import Index
from bramley.cachestore.keys import Identity
from bramley.common.logs import facts

log = logging.getLogger(__name__)

_NAMESPACE = re.compile(r"[0-9a-f]{16}")


@dataclass
class Survey:
    """What lies in the folder.

    Attributes:
        entries: the sound objects by id.
        trusted: how many of them the index told of, so that their files were not read.
        namespaces: identities by root.
        damaged: files that are not what was written, and why.
        newer: intact files of a newer format.
        foreign: what no version of the store writes.
        unreadable: files and folders that the system does not let us read now.
        leftovers: of writes that did not finish.
    """

    entries: dict[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    trusted: int = 0
    namespaces: dict[bytes, Identity] = field(default_factory=dict[bytes, Identity])
    damaged: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])
    newer: list[Path] = field(default_factory=list[Path])
    foreign: list[Path] = field(default_factory=list[Path])
    unreadable: list[Path] = field(default_factory=list[Path])
    leftovers: list[Path] = field(default_factory=list[Path])

    def counts(self) -> dict[str, int]:
        """Say how many of each there are."""
        kinds = ("entries", "namespaces", "damaged", "newer", "foreign", "unreadable", "leftovers")
        return {kind: len(getattr(self, kind)) for kind in kinds} | {"trusted": self.trusted}


def recover(folder: Folder, index: Index) -> Survey:
    """Find what is there, put it in order, and make the index tell of it.

    Args:
        folder: claimed.
        index: its rows are believed after a clean shutdown; the times of use always.

    Returns:
        What was found, before it was put in order.
    """
    rows = index.entries()
    found = survey(folder, rows if index.is_trusted else {})
    sync_names(folder, found, rows)
    put_in_order(folder, found)
    index.mend(rows, found.entries)
    return found


def sync_names(folder: Folder, found: Survey, rows: Collection[str]) -> None:
    """Make durable the names that somebody gave and, killed, did not: all are promised now.

    An object that has a row in the index has had its name synced.
    """
    new = [entry.object for object_id, entry in found.entries.items() if object_id not in rows]
    fans = {folder.object(stored.root, stored.id).parent for stored in new}
    namespaces = {folder.namespace(name) for name in found.namespaces} | {
        fan.parent for fan in fans
    }
    try:
        for path in (*fans, *namespaces, folder.namespaces):
            folder.files.fsync_dir(path)
    except OSError as error:
        log.warning("could not sync the cache store's folder", extra=facts(error=error))


def put_in_order(folder: Folder, found: Survey) -> None:
    """Clear leftovers and empty namespaces, and set the damaged files aside."""
    try:
        for path in found.leftovers:
            folder.files.unlink(path)
        for path, why in found.damaged:
            folder.set_aside(path)
            log.warning("set a damaged file aside", extra=facts(file=path, why=why))
        folder.trim_quarantine()
        _clear_namespaces(folder, found)
    except OSError as error:  # they stay where they are, and are not listed all the same
        log.warning("could not clear the cache store's folder", extra=facts(error=error))


def _clear_namespaces(folder: Folder, found: Survey) -> None:
    used = {folder.namespace(entry.object.root) for entry in found.entries.values()}
    for name in folder.files.list(folder.namespaces):
        path = folder.namespaces / name
        if not _NAMESPACE.fullmatch(name) or path in used:
            continue
        with contextlib.suppress(OSError):  # something in it is not ours
            if folder.clear_namespace(path):
                for root in [one for one in found.namespaces if folder.namespace(one) == path]:
                    del found.namespaces[root]


def survey(folder: Folder, rows: dict[str, FileEntry]) -> Survey:
    """Look at every file, and read the headers of those that ``rows`` do not tell of."""
    found = Survey()
    found.leftovers = [
        path for path, mode in _children(folder, folder.tmp, found) if modes.S_ISREG(mode)
    ]
    for namespace, mode in _children(folder, folder.namespaces, found):
        if not (modes.S_ISDIR(mode) and _NAMESPACE.fullmatch(namespace.name)):
            found.foreign.append(namespace)
            continue
        known = folder.read_namespace(namespace)
        if known is not None and folder.namespace(known[0]) == namespace:
            found.namespaces[known[0]] = known[1]
        _survey_namespace(folder, namespace, rows, found)
    return found


def _survey_namespace(
    folder: Folder, namespace: Path, rows: dict[str, FileEntry], found: Survey
) -> None:
    for fan, fan_mode in _children(folder, namespace, found):
        if modes.S_ISDIR(fan_mode) and FAN.fullmatch(fan.name):
            for path, mode in _children(folder, fan, found):
                if modes.S_ISREG(mode) and folder.is_object(path):
                    _survey_file(folder, path, rows, found)
                else:
                    found.foreign.append(path)
        elif fan.name != "namespace.json":
            found.foreign.append(fan)


def _children(folder: Folder, path: Path, found: Survey) -> list[tuple[Path, int]]:
    """List a folder with the modes of what is in it; empty if it cannot be read."""
    try:
        children = [path / name for name in folder.files.list(path)]
        return [(child, folder.files.stat(child).st_mode) for child in children]
    except OSError:
        found.unreadable.append(path)
        return []


def _survey_file(folder: Folder, path: Path, rows: dict[str, FileEntry], found: Survey) -> None:
    try:
        row = rows.get(path.stem)
        if row is not None and row.is_of(folder.files.stat(path)):
            entry = row
            found.trusted += 1
        else:
            entry = read_file(folder.files, path)
    except NotOurs as kind:
        (found.newer if kind.newer else found.foreign).append(path)
    except Damaged as error:
        found.damaged.append((path, str(error)))
    except OSError:
        found.unreadable.append(path)
    else:
        _place(folder, path, entry, found)


def _place(folder: Folder, path: Path, entry: FileEntry, found: Survey) -> None:
    """List an object, unless its file has another's name or its id is another's too."""
    stored = entry.object
    here = path.parent.parent == folder.namespace(stored.root) and path.stem == stored.id
    if here and stored.id not in found.entries:
        found.entries[stored.id] = entry
    else:
        found.damaged.append((path, f"it holds the object {stored.id}, which belongs elsewhere"))


def bytes_on_disk(folder: Folder, path: Path) -> int:
    """Bytes that a file, or a folder with all that is in it, takes; 0 where it cannot be read."""
    try:
        stat = folder.files.stat(path)
        names = folder.files.list(path) if modes.S_ISDIR(stat.st_mode) else []
    except OSError:
        return 0
    return on_disk(stat) + sum(bytes_on_disk(folder, path / name) for name in names)
