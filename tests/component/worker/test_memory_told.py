"""What an engine tells of its memory, and that it gives all of it back at its end."""

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from bramley.worker.cache.build import build_states, model_caches
from bramley.worker.cache.table import RowTable
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.engine import Engine
from bramley.worker.engine.executor import Executor
from bramley.worker.models.contract import LanguageModel
from bramley.worker.settings import WorkerSettings
from support.blas import BLAS
from support.engines import FULL, PATIENCE_S, InProcessEngine, request
from support.tiny_models import build

MIB = 1 << 20


class Wide:
    """A model that takes some memory beside in each prefill, and holds some of its own."""

    def __init__(self, model: LanguageModel, *, beside: int = 0, held: int = 0) -> None:
        self._model = model
        self.beside = beside
        self._held = mx.ones(held // 4)
        mx.eval(self._held)

    def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
        logits = self._model(inputs, cache=cache)
        if self.beside and inputs.shape[1] > 1:
            mx.eval(mx.ones(self.beside // 4))
        return logits


def _idle_engine(made: Callable[[], Wide]) -> Engine:
    """Make an engine that alone holds its model, once it has loaded it."""
    loaded = threading.Event()

    def make_cohort() -> Cohort:
        table = RowTable(sum_panel=BLAS.sum_panel)
        states = build_states(table, (FULL, FULL))
        return Cohort(table, states, lambda: model_caches(states, (FULL, FULL)))

    def load() -> Executor:
        executor = Executor(made(), make_cohort)
        loaded.set()
        return executor

    engine = Engine(load, WorkerSettings(path=""), lambda _: None)
    engine.start()
    assert loaded.wait(PATIENCE_S)
    return engine


def test_workspace_is_the_most_that_a_step_took_beside_weights_and_rows() -> None:
    model = Wide(build("full", seed=5))
    engine = InProcessEngine(model)
    try:
        counters = engine.engine.counters
        engine.run(request("small", [1, 2, 3, 4], max_tokens=40))
        engine.idle()
        before = counters.workspace_bytes
        assert 0 < before < 8 * MIB
        model.beside = 64 * MIB
        engine.run(request("large", [5, 6, 7, 8], max_tokens=40))
        engine.idle()
        assert 64 * MIB <= counters.workspace_bytes < 72 * MIB
        most = counters.workspace_bytes
        model.beside = 0
        engine.run(request("again", [5, 6, 7, 9], max_tokens=40))
        assert counters.workspace_bytes == most
    finally:
        engine.close()


def test_rows_are_state_and_not_workspace() -> None:
    engine = InProcessEngine(build("full", seed=5), chunk_tokens=2048)
    try:
        counters = engine.engine.counters
        engine.run(request("small", [1, 2, 3, 4], max_tokens=2))
        weights = counters.weights_bytes
        engine.run(*(request(f"{n}", [n] * 500, max_tokens=40) for n in range(4)))
        engine.idle()
        assert counters.weights_bytes == weights
        assert counters.state_bytes == engine.cohort.nbytes > 0
    finally:
        engine.close()


def test_an_engine_that_ends_gives_back_its_model_and_mlx_s_own_cache() -> None:
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    model = build("full", seed=5)
    engine = _idle_engine(lambda: Wide(model, held=64 * MIB))
    assert mx.get_active_memory() - before >= 64 * MIB
    mx.eval(mx.ones(16 * MIB // 4))
    assert mx.get_cache_memory() > 0
    assert engine.stop(PATIENCE_S)
    assert mx.get_active_memory() - before < 32 * MIB
    assert mx.get_cache_memory() == 0


def test_weights_are_what_is_in_use_before_any_request() -> None:
    gc.collect()
    before = mx.get_active_memory()
    model = build("full", seed=5)
    engine = _idle_engine(lambda: Wide(model, held=64 * MIB))
    while not engine.counters.weights_bytes:
        threading.Event().wait(0.01)
    assert 64 * MIB <= engine.counters.weights_bytes - before < 72 * MIB
    assert engine.stop(PATIENCE_S)
