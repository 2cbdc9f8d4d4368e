"""An engine whose requests are saved to a cache store, or not, as a worker runs it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from bramley.bench.turns import STREAM_PROMPT, STREAMS, Load, Turn
from bramley.cachestore.client import StoreClient
from bramley.worker.engine.engine import Engine
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import Failed, Output, Saved, Token
from bramley.worker.loading import Loaded, Numerics, load
from bramley.worker.prefix import PrefixCache
from bramley.worker.request import Request, StopRule
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.settings import WorkerSettings

PATIENCE_S = 120.0


class Saves:
    """The engine, on its thread, and what hears of it, on the event loop. Close it."""

    def __init__(self, folder: Path, sum_panel: int, loop: asyncio.AbstractEventLoop) -> None:
        settings = WorkerSettings(path=str(folder))
        self.loaded: asyncio.Future[Loaded] = loop.create_future()

        def make() -> Executor:
            executor, loaded = load(settings, Numerics("cpu", sum_panel), lambda _, __: None)
            loop.call_soon_threadsafe(self.loaded.set_result, loaded)
            return executor

        def deliver(outputs: Sequence[Output]) -> None:
            loop.call_soon_threadsafe(self._hear, outputs)

        self.engine = Engine(make, settings, deliver)
        self.prefixes: PrefixCache
        self._came: dict[str, list[float]] = {}
        self._unfinished: set[str] = set()
        self._news = asyncio.Event()
        self.engine.start()

    @classmethod
    async def of(cls, folder: Path, sum_panel: int, client: StoreClient) -> Self:
        """Serve a model folder as a worker does."""
        made = cls(folder, sum_panel, asyncio.get_running_loop())
        state = (await made.loaded).state
        made.prefixes = PrefixCache(client, state, settled=made.engine.settle)
        return made

    async def turn(self, load: Load, *, seed: int, is_saved: bool) -> Turn:
        """Run the streams, and beside them the other requests, one after so many tokens."""
        counters = self.engine.counters
        counters.saving_longest_s = 0.0
        before_s, stored = counters.saving_s, counters.stored
        salt = f"{seed} {is_saved}"
        streams = [
            self._request(f"{salt} stream {n}", _prompt(seed, n, STREAM_PROMPT), load.tokens)
            for n in range(STREAMS)
        ]
        self._submit(*streams)
        every = load.tokens // (load.others + 1)
        for number in range(load.others):
            first = self._came[streams[0].id]
            await self._until(lambda first=first, at=number * every: len(first) > at)
            prompt = _prompt(seed, 100 + number + 50 * is_saved, load.prompt)
            other = self._request(f"{salt} {number}", prompt, load.answer)
            other.scope = root = self.prefixes.root("")
            if is_saved:
                other.saving = self.prefixes.saving(load.prompt - 10, None, root)
                assert other.saving is not None
            self._submit(other)
        await self._until(lambda: not self._unfinished)
        times = [self._came[one.id] for one in streams]
        took_s = max(row[-1] for row in times) - max(row[0] for row in times)
        await self._saved()
        return Turn(
            took_s,
            counters.saving_s - before_s,
            counters.saving_longest_s,
            counters.stored - stored,
        )

    async def close(self) -> None:
        """End both."""
        await self.prefixes.close()
        await asyncio.to_thread(self.engine.stop, PATIENCE_S)

    async def _saved(self) -> None:
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        self.engine.save_owed(
            time.monotonic() + PATIENCE_S, lambda: loop.call_soon_threadsafe(done.set)
        )
        await done.wait()

    def _request(self, name: str, prompt: list[int], tokens: int) -> Request:
        stop = StopRule(max_tokens=tokens)
        return Request(id=name, prompt=prompt, stop=stop, sampling=SamplingParams())

    def _submit(self, *requests: Request) -> None:
        for one in requests:
            self._came[one.id] = []
            self._unfinished.add(one.id)
        self.engine.submit(*requests)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def _hear(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            assert not isinstance(output, Failed), output.error
            if isinstance(output, Saved):
                self.prefixes.publish(output)
            elif isinstance(output, Token):
                self._came[output.request_id].append(output.at_s)
                if output.finish is not None:
                    self._unfinished.discard(output.request_id)
        self._news.set()


def _prompt(seed: int, number: int, tokens: int) -> list[int]:
    return [(token * 37 + number * 131 + seed * 7919) % 900 + 50 for token in range(tokens)]
