"""What the worker tells of itself: state, limits, load; wakes those who watch."""

import asyncio
import contextlib
import math
import time
from collections.abc import Mapping

import psutil

from bramley.cachestore import keys
from bramley.cachestore.objects import BLOCK
from bramley.common.wire import pack_ids
from bramley.protos.v1 import types_pb2, worker_pb2
from bramley.worker.engine.counters import Counters
from bramley.worker.engine.slots import Parked

HEARTBEAT_S = 0.5
RESIDENT_EVERY_S = 1.0


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
        self._resident = Resident()
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

    def loading(self, state: types_pb2.ModelState.ValueType, share: float) -> None:
        """Note how far the model's load is: LOADING or WARMING, and 0 to 1."""
        self.state, self.load_progress = state, share
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
            memory=worker_pb2.Memory(
                weights=counters.weights_bytes,
                state=counters.state_bytes,
                workspace=counters.workspace_bytes,
                resident=self._resident.bytes(time.monotonic()),
            ),
            step_age_s=self._step_age_s(time.monotonic()),
        )

    def _step_age_s(self, now_s: float) -> float:
        began_s = self._counters.step_began_s
        return max(0.0, now_s - began_s) if began_s else 0.0


class Resident:
    """What this process holds, as the system counts; asked once a second at most."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._asked_s = -math.inf
        self._bytes = 0

    def bytes(self, now_s: float) -> int:
        """Tell it, as it was within the last second."""
        if now_s - self._asked_s >= RESIDENT_EVERY_S:
            self._asked_s, self._bytes = now_s, self._process.memory_info().rss
        return self._bytes


def _last_block(row: Parked) -> bytes:
    return keys.chain(row.scope, pack_ids(row.tokens))[-keys.HASH_BYTES :]
