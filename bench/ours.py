"""Our side of a comparison: the engine as a worker runs it, in this process."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from bramley.bench.timeline import Timeline
from bramley.worker.engine.engine import Engine
from bramley.worker.engine.executor import Executor
from bramley.worker.engine.outputs import Failed, Output, Token
from bramley.worker.loading import Numerics, load
from bramley.worker.request import LogprobRule, Request, StopRule
from bramley.worker.sampling.params import SamplingParams
from bramley.worker.settings import WorkerSettings

PATIENCE_S = 120.0


class Ours:
    """An engine on its own thread. Close it.

    Args:
        make: loads the model; on that thread.
        max_rows: that share a step.
    """

    def __init__(self, make: Callable[[], Executor], max_rows: int = 8) -> None:
        settings = WorkerSettings(path="", max_rows=max_rows)
        self._engine = Engine(make, settings, self._deliver)
        self._engine.start()
        self._runs = 0
        self._times: dict[str, list[float]] = {}
        self._steps: list[tuple[float, float]] = []
        self._unfinished: set[str] = set()
        self._done = threading.Event()

    @classmethod
    def of(cls, folder: Path, sum_panel: int, max_rows: int = 8) -> Self:
        """Serve a model folder as a worker does, on a BLAS of this ``sum_panel``."""
        settings = WorkerSettings(path=str(folder), max_rows=max_rows)
        return cls(
            lambda: load(settings, Numerics("cpu", sum_panel), lambda _, __: None)[0], max_rows
        )

    def run(
        self, prompts: Sequence[list[int]], tokens: int, logprobs: LogprobRule | None = None
    ) -> Timeline:
        """Run so many greedy tokens after each prompt, all together."""
        self._runs += 1
        names = [f"{self._runs}.{row}" for row in range(len(prompts))]
        self._times, self._steps = {name: [] for name in names}, []
        self._unfinished = set(names)
        self._done.clear()
        requests = [
            Request(
                id=name,
                prompt=prompt,
                stop=StopRule(max_tokens=tokens),
                sampling=SamplingParams(),
                logprobs=logprobs,
            )
            for name, prompt in zip(names, prompts, strict=True)
        ]
        self._engine.submit(*requests)
        assert self._done.wait(PATIENCE_S), "the engine did not finish"
        return Timeline([self._times[name] for name in names], self._steps)

    def close(self) -> None:
        """End the engine's thread."""
        assert self._engine.stop(PATIENCE_S)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            assert not isinstance(output, Failed), output.error
            if isinstance(output, Token):
                self._times[output.request_id].append(output.at_s)
                if output.finish is not None:
                    self._unfinished.discard(output.request_id)
        self._steps.append((time.monotonic(), time.thread_time()))
        if not self._unfinished:
            self._done.set()
