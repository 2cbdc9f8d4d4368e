"""Computes embeddings between other requests' steps: one forward a turn. On the engine's thread.

A forward takes several whole texts, of any jobs, or a piece of one that is longer than a chunk.
Its rows are nobody's seats: their state is dropped once the texts are done, or as soon as a
request needs its memory, and then the texts start over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from bramley.common.errors import BramleyError
from bramley.worker.embedding.job import EmbedJob, Text, choose, texts_of
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.containment import Containment
from bramley.worker.engine.costs import Costs
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import Embedded, Failed, Output
from bramley.worker.engine.scheduler import Limits, piece_tokens
from bramley.worker.engine.seating import Seating

Vectors: TypeAlias = "npt.NDArray[np.float32]"  # a row each


@dataclass(slots=True, eq=False)
class _Flight:
    """The texts that are being computed; a text's row is its place here."""

    texts: Sequence[Text]
    cohort: Cohort
    computed: int = 0
    sums: mx.array | None = None

    @property
    def columns(self) -> int:
        """Tokens of the longest."""
        return max(len(text.ids) for text in self.texts)


class Embedder:
    """Jobs that have not ended.

    Args:
        executor: of the model.
        seating: whose memory the rows take from.
        limits: of a chunk.
        contained: keeps a fault to the jobs whose texts were in the forward.
        outputs: takes what becomes of jobs.
    """

    def __init__(
        self,
        executor: Executor,
        seating: Seating,
        limits: Limits,
        contained: Containment,
        outputs: list[Output],
    ) -> None:
        self._executor = executor
        self._seating = seating
        self._limits = limits
        self._contained = contained
        self._outputs = outputs
        self._waiting: dict[EmbedJob, list[Text]] = {}
        self._flight: _Flight | None = None
        self._had_turn = False

    @property
    def is_busy(self) -> bool:
        """Whether some job has not ended."""
        return bool(self._waiting)

    def add(self, jobs: Iterable[EmbedJob]) -> None:
        """Let jobs wait for their turns."""
        self._waiting.update((job, texts_of(job)) for job in jobs)

    def cancel(self, ids: set[str]) -> None:
        """End jobs without a word."""
        for job in [job for job in self._waiting if job.id in ids]:
            self._end(job)

    def takes_turn(self, costs: Costs, *, decode: bool, prefill: bool) -> bool:
        """Take a turn, if it is due: beside prompts every other one, beside rows as prompts do."""
        if not self.is_busy or (decode and costs.owed_s > 0.0):
            return False
        self._had_turn = not (prefill and self._had_turn)
        return self._had_turn

    def turn(self, costs: Costs, seconds: float) -> tuple[int, int]:
        """Compute as much as takes so long.

        Returns:
            Tokens of texts, and those of the forward with its padding; 0 where there is no room.
        """
        done = [0, 0]

        def work() -> None:
            flight = self._in_flight() or self._start(costs, seconds)
            if flight is not None:
                left = flight.columns - flight.computed
                tokens = piece_tokens(flight.computed, left, self._limits, costs, seconds)
                counts = self._compute(flight, left if len(flight.texts) > 1 else min(left, tokens))
                done[:] = sum(counts), max(counts) * len(counts)

        self._contained.aside(work, self._fail)
        return done[0], done[1]

    def _in_flight(self) -> _Flight | None:
        flight = self._flight
        if flight is None or flight.cohort is self._seating.aside:
            return flight
        self._flight = None  # its memory was needed
        return None

    def _start(self, costs: Costs, seconds: float) -> _Flight | None:
        waiting = [text for texts in self._waiting.values() for text in texts]
        tokens = sum(len(text.ids) for text in waiting)
        texts = choose(waiting, piece_tokens(0, tokens, self._limits, costs, seconds))
        if not self._limits.shares_chunks:
            texts = texts[:1]
        columns = len(texts[0].ids)
        make = self._executor.cohort_aside
        while (cohort := self._seating.set_aside(make, len(texts), columns)) is None:
            if len(texts) == 1:
                break
            texts = texts[: len(texts) // 2]
        if cohort is None:
            if not self._seating.slots.seated:
                raise self._seating.too_large(columns)
            return None  # until others have ended
        self._flight = _Flight(texts, cohort)
        return self._flight

    def _compute(self, flight: _Flight, columns: int) -> Sequence[int]:
        first = flight.computed
        pieces = [text.ids[first : first + columns] for text in flight.texts]
        sums, lasts = self._executor.embed(flight.cohort, pieces)
        flight.computed += columns
        if flight.sums is not None:
            sums += flight.sums
        flight.sums = sums
        if flight.computed >= flight.columns:
            self._done(flight, _vectors(sums), _vectors(lasts))
        return [len(piece) for piece in pieces]

    def _done(self, flight: _Flight, sums: Vectors, lasts: Vectors) -> None:
        self._drop()
        for row, text in enumerate(flight.texts):
            job = text.job
            if job not in self._waiting:
                continue
            vector = lasts[row] if job.pooling == "last" else sums[row] / len(text.ids)
            job.values[text.index] = vector.astype("<f4").tobytes()
            self._waiting[job].remove(text)
            if job.is_done:
                del self._waiting[job]
                values = tuple(job.values[index] for index in range(len(job.texts)))
                self._outputs.append(Embedded(job.id, values))

    def _fail(self, error: BramleyError) -> None:
        flight = self._flight
        jobs = {text.job for text in flight.texts} if flight else {next(iter(self._waiting))}
        self._drop()
        for job in jobs & self._waiting.keys():
            self._end(job)
            self._outputs.append(Failed(job.id, error))

    def _end(self, job: EmbedJob) -> None:
        del self._waiting[job]
        flight = self._flight
        if flight is not None and all(text.job not in self._waiting for text in flight.texts):
            self._drop()

    def _drop(self) -> None:
        self._flight = None
        self._seating.drop_aside()


def _vectors(array: mx.array) -> Vectors:
    return np.array(cast("Any", array), np.float32)
