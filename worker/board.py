"""What the worker tells of itself: state, limits, load; wakes those who watch."""

import asyncio
import contextlib
from collections.abc import Mapping

from bramley.cachestore import keys
from bramley.cachestore.objects import BLOCK
from bramley.common.wire import pack_ids
from bramley.protos.v1 import types_pb2, worker_pb2
from bramley.worker.engine.counters import Counters
from bramley.worker.engine.slots import Parked

HEARTBEAT_S = 0.5


class Board:
    """Written and read on the event loop only, but for the engine's own counters."""

    def __init__(self, counters: Counters, lookups: Mapping[str, int]) -> None:
        self._counters = counters
        self._lookups = lookups
        self._next = asyncio.Event()
        self._version = 0
        self._chains: dict[int, bytes] = {}  # by the number of the parking
        self.state: types_pb2.ModelState.ValueType = types_pb2.MODEL_STATE_LOADING
        self.load_progress = 0.0
        self.limits: types_pb2.ModelLimits | None = None
        self.revision = ""

    @property
    def prefill_rate(self) -> float:
        """Prompt tokens a second, as measured so far; 0 until known."""
        counters = self._counters
        return counters.prompt_tokens / counters.prefill_s if counters.prefill_s else 0.0

    def _row_chains(self) -> list[bytes]:
        """Name each parked row by the hash of its last whole block, made once a parking."""
        parked = self._counters.rows
        known, self._chains = self._chains, dict[int, bytes]()
        for number, row in parked.items():
            if row.scope and len(row.tokens) >= BLOCK:
                self._chains[number] = known.get(number) or _last_block(row)
        return list(self._chains.values())

    def loading(self, share: float) -> None:
        """Note how far the model's load is, 0 to 1."""
        self.load_progress = share
        self.changed()

    def changed(self) -> None:
        """Wake everyone who watches; call it after any change."""
        self._version += 1
        passed, self._next = self._next, asyncio.Event()
        passed.set()

    async def wait(self, seen: int) -> int:
        """Wait for a change after version ``seen``, at most until the next heartbeat."""
        if self._version == seen:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._next.wait()
        return self._version

    def load(self) -> worker_pb2.Load:
        """Describe this moment."""
        counters = self._counters
        return worker_pb2.Load(
            state=self.state,
            load_progress=self.load_progress,
            steps=counters.steps,
            requests_running=counters.running,
            requests_waiting=counters.waiting,
            prompt_tokens_waiting=counters.waiting_prompt_tokens,
            prompt_tokens=counters.prompt_tokens,
            completion_tokens=counters.completion_tokens,
            memory_bytes=counters.active_bytes,
            prefill_rate=self.prefill_rate,
            limits=self.limits,
            revision=self.revision,
            row_chains=self._row_chains(),
            snapshots_owed=counters.owed,
            snapshots_stored=counters.stored,
            snapshots_refused=dict(counters.refused),
            snapshots_lost=dict(counters.lost),
            lookups=dict(self._lookups),
        )


def _last_block(row: Parked) -> bytes:
    return keys.chain(row.scope, pack_ids(row.tokens))[-keys.HASH_BYTES :]
