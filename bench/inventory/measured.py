"""Runs a worker as far as a prediction went, and tells what it took.

``python -m bramley.bench.inventory.measured MODEL --context N --batch N``: rows start together,
and each ends with as many tokens, the last 32 of which are generated.
"""

import argparse
import asyncio
import random
import sys
from contextlib import aclosing
from pathlib import Path

import uvloop

from bramley.bench.served import Served, serving
from bramley.client.commands.screen import print_json
from bramley.protos.v1 import worker_pb2

GENERATED = 32  # tokens of each row
_WORDS = 250  # of any vocabulary


async def measured(model: Path, *, context: int, batch: int) -> worker_pb2.Memory:
    """Have a worker of its own compute so many rows of so many tokens.

    Returns:
        The most that it told of each part of its memory.
    """
    chosen = random.Random(0)  # noqa: S311 any tokens
    prompts = [
        [chosen.randrange(1, _WORDS) for _ in range(context - GENERATED)] for _ in range(batch)
    ]
    most = worker_pb2.Memory()
    async with serving(model, batch) as served:
        over = asyncio.Event()
        watching = asyncio.create_task(_watch(served, most, over))
        await served.run(prompts, GENERATED)
        over.set()
        await watching
    return most


async def _watch(served: Served, most: worker_pb2.Memory, over: asyncio.Event) -> None:
    """Note the most of each part, up to the first report after the end."""
    async with aclosing(served.loads()) as loads:
        async for load in loads:
            told = load.memory
            most.weights = max(most.weights, told.weights)
            most.state = max(most.state, told.state)
            most.workspace = max(most.workspace, told.workspace)
            most.resident = max(most.resident, told.resident)
            if over.is_set() and not load.requests_running:
                return


def main() -> int:
    """Measure as the command line says, and print bytes by part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4)
    chosen = parser.parse_args()
    told = uvloop.run(measured(chosen.model, context=chosen.context, batch=chosen.batch))
    print_json({field.name: value for field, value in told.ListFields()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
