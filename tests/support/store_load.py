"""A worker that stores and reads until it is killed: ``store_load.py TARGET SEED``.

It says ``+PROMPT TOKENS`` once a flush covers so many tokens of a prompt, and ``!`` with what is
wrong; prompts are those of support/store.py, and several workers share them.
"""

import asyncio
import random
import sys

from bramley.cachestore.exchange import Published, Refusal, Snapshot
from support.store import Worker, ids, worker

PROMPTS = 24
TOKENS_MAX = 1500
PART_BYTES = 3000


class Careful(Worker):
    """One to whom a store may be lost at any moment."""

    async def publish(self, snapshot: Snapshot) -> Published | Refusal:
        """Publish, if there is a store."""
        try:
            return await super().publish(snapshot)
        except AssertionError:  # nowhere to stage it
            return Refusal("STORE_LOST")


def say(line: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def turn(one: Worker, chance: random.Random) -> None:
    """Do what a worker does for a request."""
    prompt, tokens = chance.randrange(PROMPTS), chance.randrange(1, TOKENS_MAX)
    try:
        restored = await one.read(ids(tokens + 1, prompt))
    except AssertionError as error:
        say(f"! wrong bytes of {prompt}: {error!r}")
        raise
    answers = await one.put(
        ids(tokens, prompt), first_block=min(restored, tokens) // 256, part_bytes=PART_BYTES
    )
    if all(isinstance(answer, Published) for answer in answers):
        flushed = await one.client.flush()
        if flushed is not None and not flushed.pending and not flushed.failed:
            say(f"+{prompt} {tokens}")


async def main() -> None:
    """Go on for ever."""
    chance = random.Random(int(sys.argv[2]))  # noqa: S311
    async with worker(sys.argv[1]) as linked:
        one = Careful(linked.client, linked.root)
        say("ready")
        while True:
            if one.client.link is None:
                await asyncio.sleep(0.01)
            else:
                await turn(one, chance)


if __name__ == "__main__":
    asyncio.run(main())
