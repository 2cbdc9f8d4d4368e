"""``python -m bramley.cachestore.check FOLDER``: look at a store's folder while it is stopped.

Exit codes: 0 all is well, or was put in order; 1 something is wrong; 2 the folder cannot be
looked at.
"""

import argparse
import sys
from pathlib import Path

from bramley.cachestore.catalogue import Catalogue
from bramley.cachestore.eviction import Order
from bramley.cachestore.files import Files, on_disk
from bramley.cachestore.folder import DiskUnavailable, Folder
from bramley.cachestore.format import Damaged, read_parts
from bramley.cachestore.index import Index
from bramley.cachestore.objects import padded
from bramley.cachestore.recover import Survey, bytes_on_disk, put_in_order, survey
from bramley.cachestore.sessions import Rank
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
        code = check(folder, bodies=arguments.bodies, repair=arguments.repair)
        if arguments.budget is not None:
            _say(code, *plan(folder, arguments.budget))
        return code
    finally:
        folder.release()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bramley.cachestore.check", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--bodies", action="store_true", help="read the payloads too")
    parser.add_argument(
        "--repair", action="store_true", help="set damaged files aside, and renew the index"
    )
    parser.add_argument(
        "--budget",
        type=int,
        metavar="BYTES",
        help="say what would leave for the folder to take no more, and remove nothing",
    )
    return parser


def plan(folder: Folder, budget: int) -> list[str]:
    """Say what a store of so many bytes would remove.

    Open sessions, readers and the speed of each model are not known here: a store that runs may
    choose others.

    Returns:
        A line for the whole, and one for each object, in their order.
    """
    found, index = survey(folder, {}), Index(folder.index, folder.files)
    used = {key: entry.object.created_s for key, entry in found.entries.items()}
    used |= {key: at_s for key, at_s in index.used().items() if key in used}
    index.close(clean=index.is_trusted)
    objects = [entry.object for entry in found.entries.values()]
    objects.sort(key=lambda one: one.first_token)
    catalogue = Catalogue()
    order = Order(catalogue, lambda _: Rank.FREE)
    order.fill(objects, used)
    over = bytes_on_disk(folder, folder.path) - budget
    lines = [f"over budget by {max(0, over)} bytes"]
    while over > 0 and (victim := order.disk_victim(lambda _: True)) is not None:
        one = victim.object
        path = folder.object(one.root, one.id)
        tokens = f"tokens {one.first_token} to {victim.end_token}"
        lines.append(f"{path}: would leave: {one.kind}, {tokens}, {one.payload_bytes} bytes")
        catalogue.remove(victim)
        over -= on_disk(folder.files.stat(path))
    return lines


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
