"""What saving costs those who decode: ``python -m bramley.bench.capture [--model MODEL]``.

Streams decode while other requests come, whose prompts and answers are saved to a cache store in
a process of its own, or are not: the same work in the same order, in turn, in this one process.
The figures: the time until the streams have their tokens, with the store and without; the share
of it that copying takes; and how much longer one step is for it.
"""

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import uvloop

from bramley.bench.children import context_of, spawn
from bramley.bench.figures import Figure, Machine, Required, show
from bramley.bench.turns import LOADS, STREAMS, Turn
from bramley.cachestore.client import StoreClient
from bramley.cachestore.settings import StoreSettings
from bramley.common.main import leave
from bramley.worker.models.blas import forget_blas, load_blas

REST_S = 0.3
PATIENCE_S = 120.0
SLOWDOWN_MAX = 1.02
SHARE_MAX = 0.05
MS = 1e-3


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=tuple(LOADS), action="append", help="both unless given")
    parser.add_argument("--turns", type=int, default=5, help="medians are over this many")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds in all to wait for a quiet machine"
    )
    parser.add_argument("--json", action="store_true", help="one object instead of a table")
    return parser.parse_args(arguments)


@asynccontextmanager
async def store() -> AsyncGenerator[StoreClient]:
    """Run a store with a disk in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        settings = StoreSettings(folder=f"{folder}/disk", ram_bytes=1 << 30, disk_bytes=2 << 30)
        context = context_of("store", "store", folder)
        child = await spawn(["-P", "-m", "bramley.cachestore"], context, settings)
        client = StoreClient.connect(f"unix:{folder}/store.sock", "bench")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await client.linked()
            yield client
        finally:
            await client.close()
            await child.end()


async def measure(
    name: str, folder: Path, turns: int, machine: Machine, sum_panel: int
) -> list[Figure]:
    """Measure one model.

    Args:
        name: of the model.
        folder: its own.
        turns: how many.
        machine: to be waited for.
        sum_panel: of the BLAS.

    Returns:
        The figures.
    """
    from bramley.bench.saving import Saves  # noqa: PLC0415 MLX, after the BLAS

    load, sides = LOADS[name], ("saved", "not saved")
    slowdown = Figure(
        f"{name}: decoding beside requests",
        "s",
        sides,
        required=Required("<=", SLOWDOWN_MAX),
    )
    share = Figure(
        f"{name}: copies, of the time",
        "s",
        ("copies", "all"),
        required=Required("<=", SHARE_MAX),
    )
    longest = Figure(f"{name}: longest copy, a step of {STREAMS} rows", "ms", ("copy", "step"))
    async with store() as client:
        saves = await Saves.of(folder, sum_panel, client)
        try:
            await saves.turn(load, seed=1000, is_saved=True)  # warm
            for turn in range(turns):
                came: dict[bool, Turn] = {}
                for is_saved in (True, False) if turn % 2 else (False, True):
                    await asyncio.to_thread(machine.rest, REST_S)
                    came[is_saved] = await saves.turn(load, seed=turn, is_saved=is_saved)
                    assert came[is_saved].stored >= is_saved * load.others
                slowdown.add(came[True].took_s, came[False].took_s)
                share.add(came[True].saving_s, came[True].took_s)
                step_s = came[False].took_s / load.tokens
                longest.add(came[True].longest_s / MS, step_s / MS)
        finally:
            await saves.close()
    return [slowdown, share, longest]


async def main() -> int:
    """Measure and print; return the exit code."""
    arguments = parse(sys.argv[1:])
    blas = load_blas()
    # After the BLAS, which MLX finds only if it is there first.
    from bramley.bench.models import write_models  # noqa: PLC0415

    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="bramley-") as folder:
        models = write_models(Path(folder))
        machine = Machine(arguments.patience)
        for name in arguments.model or LOADS:
            figures += await measure(name, models[name], arguments.turns, machine, blas.sum_panel)
        others = machine.others_share()
    show(figures, others, as_json=arguments.json)
    forget_blas()
    return int(any(figure.verdict == "MISSED" for figure in figures))


if __name__ == "__main__":
    code = uvloop.run(main())
    sys.stdout.flush()
    leave(code)
