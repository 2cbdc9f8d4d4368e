"""``python -m bramley.cachestore.check FOLDER``: look at a store's folder while it is stopped.

Exit codes: 0 all is well, or was put in order; 1 something is wrong; 2 the folder cannot be
looked at.
"""

import argparse
import sys
from pathlib import Path

from bramley.cachestore.files import Files
from bramley.cachestore.folder import DiskUnavailable, Folder
from bramley.cachestore.format import Damaged, read_parts
from bramley.cachestore.index import Index
from bramley.cachestore.objects import padded
from bramley.cachestore.recover import Survey, put_in_order, survey
from bramley.common import logs


def main() -> int:
    """Check the folder that the command line names, and return the exit code."""
    arguments = _parser().parse_args()
    logs.setup("check")
    folder = Folder(arguments.folder, Files())
    try:
        folder.claim(make=False)
    except DiskUnavailable as error:
        return _say(2, error.strerror or str(error))
    try:
        return check(folder, bodies=arguments.bodies, repair=arguments.repair)
    finally:
        folder.release()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bramley.cachestore.check", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--bodies", action="store_true", help="read the payloads too")
    parser.add_argument(
        "--repair", action="store_true", help="set damaged files aside, and renew the index"
    )
    return parser


def check(folder: Folder, *, bodies: bool, repair: bool) -> int:
    """Look at every file and say what is wrong.

    Args:
        folder: claimed.
        bodies: read the payloads too.
        repair: set damaged files aside, clear leftovers, and make the index tell of the rest.

    Returns:
        The exit code.
    """
    found = survey(folder, {})
    if bodies:
        _read_bodies(folder, found)
    index = Index(folder.index, folder.files)
    rows = index.entries()
    differing = sorted(
        key for key in rows.keys() | found.entries.keys() if rows.get(key) != found.entries.get(key)
    )
    wrong = [f"{path}: damaged: {why}" for path, why in found.damaged]
    wrong += [f"{path}: cannot be read" for path in found.unreadable]
    unindexed = [f"{key}: the index and the files differ" for key in differing]
    notes = [f"{path}: of a newer format, left alone" for path in found.newer]
    notes += [f"{path}: not the store's, left alone" for path in found.foreign]
    notes += [f"{path}: left by a write that did not finish" for path in found.leftovers]
    if index.is_trusted:
        wrong += unindexed
    else:  # the next start mends it
        notes += unindexed
    if repair:
        put_in_order(folder, found)
        index.mend(rows, found.entries)
        left = survey(folder, {})
        wrong_now = bool(left.damaged or left.unreadable)
    else:
        wrong_now = bool(wrong)
    index.close(clean=repair or index.is_trusted)
    summary = ", ".join(f"{kind} {count}" for kind, count in found.counts().items())
    return _say(int(wrong_now), *notes, *wrong, summary)


def _read_bodies(folder: Folder, found: Survey) -> None:
    """Move the objects whose payload is damaged from the sound to the damaged."""
    for entry in list(found.entries.values()):
        path = folder.object(entry.object.root, entry.object.id)
        try:
            for number, part in enumerate(entry.object.parts):
                target = memoryview(bytearray(padded(part.nbytes)))
                read_parts(folder.files, path, entry, (number, number), target)
        except OSError as error:
            del found.entries[entry.object.id]
            if isinstance(error, Damaged):
                found.damaged.append((path, str(error)))
            else:
                found.unreadable.append(path)


def _say(code: int, *lines: str) -> int:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return code


if __name__ == "__main__":
    sys.exit(main())
