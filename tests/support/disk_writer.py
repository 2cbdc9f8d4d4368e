"""A process that writes objects until it is killed: ``disk_writer.py FOLDER FIRST SEED``.

It says ``+ID`` once an object is written and ``-ID`` before it removes one; the objects are
those of support/stored.py from number FIRST on.
"""

import random
import sys
from pathlib import Path

from bramley.cachestore.disk import Disk
from support.stored import IDENTITY, ROOT, make_stored

SIZES = (100, 40_000)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    folder, first, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(seed)  # noqa: S311
    disk = Disk.open(folder)
    disk.put_namespace(ROOT, IDENTITY)
    say("open")
    written: list[str] = []
    for number in range(first, first + 10_000):
        stored, payload = make_stored(number, SIZES)
        disk.write(stored, payload)
        say(f"+{stored.id}")
        written.append(stored.id)
        disk.touch([stored.id], float(number))
        if chance.random() < 0.3:
            gone = written.pop(chance.randrange(len(written)))
            say(f"-{gone}")
            disk.remove(gone)


if __name__ == "__main__":
    main()
