"""How long a cache store takes to start: ``python -m bramley.bench.start``.

From spawning its process to the first Match that is answered with all of a stored prompt, with
2,000 extents on the disk: after a clean end, after SIGKILL, and with its index lost. Told is what
that takes longer than the start of an empty store. Ends with 1 if it is too long.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from array import array
from pathlib import Path

import uvloop
import xxhash

from bramley.bench.figures import Required
from bramley.bench.store import GROUP, IDENTITY, connected, store
from bramley.cachestore import keys
from bramley.cachestore.disk import Disk
from bramley.cachestore.objects import ALIGN, BLOCK, Part, StoredObject
from bramley.client.commands.screen import print_table

EXTENTS = 2000
LINE = 50  # extents that follow each other
PAYLOAD = bytes(ALIGN)
REQUIRED = {
    "clean": Required("<=", 0.5),
    "killed": Required("<=", 5.0),
    "index lost": Required("<=", 5.0),
}


def prompt(line: int) -> bytes:
    """Ids of a line of extents, one block each, and of one token more."""
    return array("I", [line, *range(LINE * BLOCK)]).tobytes()


def write(folder: Path) -> None:
    """Write all the extents as a store does."""
    disk, root = Disk.open(folder), keys.root(IDENTITY)
    disk.put_namespace(root, IDENTITY)
    for line in range(EXTENTS // LINE):
        tokens = prompt(line)
        chains = [root, *_split(keys.chain(root, tokens))]
        for at in range(LINE):
            checksum = xxhash.xxh3_128_digest(PAYLOAD)
            part = Part(chain=chains[at + 1], tokens=BLOCK, nbytes=ALIGN, checksum=checksum)
            disk.write(
                StoredObject(
                    id=os.urandom(16).hex(),
                    root=root,
                    kind="extent",
                    group=GROUP.name,
                    parent=chains[at],
                    first_token=at * BLOCK,
                    token_ids_le=tokens[at * BLOCK * 4 : (at + 1) * BLOCK * 4],
                    parts=(part,),
                    header=b"",
                    created_s=time.time(),
                ),
                memoryview(PAYLOAD),
            )
    disk.close(clean=True)


def _split(chains: bytes) -> list[bytes]:
    return [chains[at : at + 32] for at in range(0, len(chains), 32)]


async def started_s(folder: Path, tokens: bytes, wanted: int, end: signal.Signals) -> float:
    """Start a store, match a prompt, and end it: the time to the answer."""
    start_s = time.perf_counter()
    async with (
        store(folder, end) as target,
        connected(target) as (client, root),
    ):
        found = await client.match(root, keys.chain(root, tokens), tokens)
        taken_s = time.perf_counter() - start_s
        tokens_found = found.boundaries[0].tokens if found and found.boundaries else 0
        assert tokens_found == wanted, f"{tokens_found} tokens are found of {wanted}"
    return taken_s


async def measure(folder: Path, runs: int) -> int:
    """Measure and print; return the exit code."""
    filled, empty = folder / "filled", folder / "empty"
    for place in (filled, empty):
        place.mkdir()
    await asyncio.to_thread(write, filled / "disk")
    tokens, whole = prompt(3), LINE * BLOCK
    term, kill = signal.SIGTERM, signal.SIGKILL
    found: dict[str, list[float]] = {"empty": [], **{name: [] for name in REQUIRED}}
    for _ in range(runs):
        found["empty"].append(await started_s(empty, tokens, 0, term))
        found["clean"].append(await started_s(filled, tokens, whole, kill))
        found["killed"].append(await started_s(filled, tokens, whole, term))
        for file in (filled / "disk").glob("index.db*"):
            file.unlink()
        found["index lost"].append(await started_s(filled, tokens, whole, term))
    base_s = statistics.median(found["empty"])
    rows: list[tuple[str, ...]] = [("empty", f"{base_s:.2f}", "", "", "")]
    is_met = True
    for name, required in REQUIRED.items():
        median_s = statistics.median(found[name])
        is_met &= required.is_met(median_s - base_s)
        word = "ok" if required.is_met(median_s - base_s) else "MISSED"
        rows.append((name, f"{median_s:.2f}", f"{median_s - base_s:.2f}", str(required), word))
    print_table((f"{EXTENTS:,} extents", "to the first hit, s", "longer, s", "required", ""), rows)
    return int(not is_met)


def main() -> int:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="medians are over this many")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        return uvloop.run(measure(Path(folder), arguments.runs))


if __name__ == "__main__":
    sys.exit(main())
