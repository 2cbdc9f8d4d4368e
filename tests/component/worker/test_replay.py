"""Kept graphs: the same bits as graphs built anew, in place, few of them, and only where safe."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, cast

import mlx.core as mx
import pytest

from bramley.common.errors import EngineFault
from bramley.worker.cache.build import build_states
from bramley.worker.cache.table import RowTable
from bramley.worker.engine import replay
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.replay import Replay
from bramley.worker.models.contract import LanguageModel
from support.blas import BLAS
from support.engines import FULL, InProcessEngine, oracle, request
from support.tiny_models import build

STEP = 16
PROMPTS = {"a": [10, 20, 30, 40], "b": [7] * 21, "c": list(range(60, 90)), "d": [3]}


class Counted:
    """A model that counts how often its code is run, and may do something there."""

    def __init__(
        self, model: LanguageModel, inside: Callable[[mx.array], None] | None = None
    ) -> None:
        self.model = model
        self.calls = 0
        self.inside = inside

    def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
        self.calls += 1
        logits = self.model(inputs, cache=cache)
        if self.inside is not None:
            self.inside(logits)
        return logits


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build("full", seed=5)


@pytest.fixture
def cohort(model: LanguageModel) -> Iterator[Cohort]:
    table = RowTable(sum_panel=BLAS.sum_panel, graph_step=STEP)
    made = Cohort(table, build_states(table, (FULL, FULL)))
    for slot, prompt in enumerate(PROMPTS.values()):
        made.join(slot)
        table.begin(range(slot, slot + 1), len(prompt))
        model(mx.array([prompt]), cache=made.layers)
        made.evaluate()
        table.commit()
    yield made
    made.reset()


def steps(forward: Replay, cohort: Cohort, rows: int, count: int) -> list[mx.array]:
    """Decode greedily; the logits of each step."""
    tokens, seen = mx.array([[5]] * rows), list[mx.array]()
    for _ in range(count):
        logits = forward(cohort, rows, tokens)
        cohort.evaluate(logits)
        cohort.table.commit()
        seen.append(logits)
        tokens = mx.argmax(logits, axis=-1)[:, None]
    return seen


def checked(model: LanguageModel) -> Replay:
    """A forward that was asked to keep graphs."""
    table = RowTable(sum_panel=BLAS.sum_panel, graph_step=STEP)
    cohort = Cohort(table, build_states(table, (FULL, FULL)))
    cohort.join(0)
    table.begin(range(1), 3)
    model(mx.array([[1, 2, 3]]), cache=cohort.layers)
    table.commit()
    forward = Replay(model)
    forward.check(cohort)
    return forward


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_kept_graphs_give_the_same_bits_and_do_not_run_the_model_file(
    model: LanguageModel, cohort: Cohort, rows: int
) -> None:
    lengths = list(cohort.table.lengths)
    plain = steps(Replay(model), cohort, rows, 40)
    for row in range(rows):
        cohort.table.rollback(row, cohort.table.lengths[row] - lengths[row])
    counted = Counted(model)
    forward = checked(counted)
    counted.calls = 0
    kept = steps(forward, cohort, rows, 40)
    assert counted.calls < 25  # of 40 steps, four widths at most
    assert all(mx.array_equal(a, b).item() for a, b in zip(plain, kept, strict=True))


def test_requests_that_come_and_go_get_what_they_get_alone(model: LanguageModel) -> None:
    counted = Counted(model)
    lasting = {"a": 200, "b": 70, "c": 200, "d": 60}
    first = [request(name, PROMPTS[name], max_tokens=lasting[name]) for name in "abc"]
    late = request("d", PROMPTS["d"], max_tokens=lasting["d"])
    with closing(InProcessEngine(counted, graph_step=STEP)) as engine:
        engine.at_step[30] = lambda: engine.submit(late)
        engine.run(*first)
        got = {name: one.tokens for name, one in engine.finished().items()}
        calls = counted.calls
    assert calls < 130  # of about 200 steps
    fresh = [request(name, PROMPTS[name], max_tokens=lasting[name]) for name in PROMPTS]
    assert got == {one.id: oracle(model, one) for one in fresh}


def test_a_replayed_step_writes_in_place(model: LanguageModel, cohort: Cohort) -> None:
    cohort.fit(4, 1 << 14)
    forward = checked(model)
    steps(forward, cohort, 4, 12)
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    steps(forward, cohort, 4, 12)
    assert mx.get_peak_memory() - before < cohort.nbytes / 8


def test_few_graphs_are_kept(
    model: LanguageModel, cohort: Cohort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_KEPT", 2)
    counted = Counted(model)
    forward = checked(counted)
    steps(forward, cohort, 4, 5 * STEP)  # several widths, of which the first is forgotten
    for row in range(4):
        cohort.table.rollback(row, 5 * STEP)
    counted.calls = 0
    steps(forward, cohort, 4, 5)
    assert counted.calls == 5  # four times anew, then a graph to keep


def test_a_model_whose_numbers_are_read_inside_is_run_anew(
    model: LanguageModel, cohort: Cohort
) -> None:
    def peek(logits: mx.array) -> None:
        mx.eval(logits)

    counted = Counted(model, peek)
    forward = checked(cast("LanguageModel", counted))
    counted.calls = 0
    steps(forward, cohort, 2, 12)
    assert counted.calls == 12


def test_a_model_that_wants_one_length_as_a_number_is_run_anew(model: LanguageModel) -> None:
    class Numbered(Counted):
        def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
            _ = range(cache[0].offset)  # an array of lengths is none
            return super().__call__(inputs, cache=cache)

    numbered = Numbered(model)
    with closing(InProcessEngine(numbered, graph_step=STEP)) as engine:
        one = request("one", PROMPTS["a"], max_tokens=12)
        assert engine.run(one)["one"] == oracle(model, request("one", PROMPTS["a"], max_tokens=12))
        assert numbered.calls > 12


def test_a_length_that_became_part_of_the_graph_is_found(
    model: LanguageModel, cohort: Cohort
) -> None:
    class Baked(Counted):
        def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
            return super().__call__(inputs, cache=cache) + float(cache[0]._table.longest)

    baked = Baked(model)
    forward = checked(baked)
    baked.calls = 0
    steps(forward, cohort, 2, 12)
    assert baked.calls == 12


def test_a_graph_that_fails_at_the_check_does_not_keep_the_model_from_serving(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Replay, graph: object, cohort: Cohort, tokens: mx.array) -> mx.array:
        for layer in cohort.layers:
            layer.adopt([mx.zeros(1), mx.zeros(1)])
        raise RuntimeError("injected")

    monkeypatch.setattr(Replay, "_replayed", fails)
    with closing(InProcessEngine(model, graph_step=STEP)) as engine:
        got = engine.run(request("one", PROMPTS["a"], max_tokens=12))["one"]
    assert got == oracle(model, request("one", PROMPTS["a"], max_tokens=12))


def test_a_graph_that_cannot_be_made_later_is_done_without(
    model: LanguageModel, cohort: Cohort
) -> None:
    class Single(Counted):
        def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
            if inputs.shape[0] > 1 and hasattr(forward, "_building"):
                raise ValueError("not on stand-ins")
            return super().__call__(inputs, cache=cache)

    forward = Replay(model)
    forward = checked(Single(model))
    kept = steps(forward, cohort, 2, 12)
    for row in range(2):
        cohort.table.rollback(row, 12)
    plain = steps(Replay(model), cohort, 2, 12)
    assert all(mx.array_equal(a, b).item() for a, b in zip(plain, kept, strict=True))


def test_kernels_that_cannot_be_compiled_later_cost_one_batch_and_no_more(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(self: Cohort, *more: mx.array) -> None:
        if more:
            raise RuntimeError("[Compile::eval_cpu] Failed to compile function")
        real(self, *more)

    real = Cohort.evaluate
    with closing(InProcessEngine(model, graph_step=STEP)) as engine:
        engine.run(request("early", PROMPTS["a"], max_tokens=2))
        monkeypatch.setattr(Cohort, "evaluate", evaluate)  # where a new graph's are compiled
        engine.submit(request("lost", PROMPTS["a"], max_tokens=12))
        engine.until(lambda: engine.outcomes["lost"].error is not None)
        assert isinstance(engine.outcomes["lost"].error, EngineFault)
        got = engine.run(request("later", PROMPTS["a"], max_tokens=12))["later"]
    assert got == oracle(model, request("later", PROMPTS["a"], max_tokens=12))


def test_a_fault_while_a_graph_is_made_leaves_the_rows_as_they_were(
    model: LanguageModel, cohort: Cohort
) -> None:
    def fault(_: mx.array) -> None:
        if fails:
            raise RuntimeError("injected")

    fails: list[bool] = []
    counted = Counted(model, fault)
    forward = checked(counted)
    before = steps(forward, cohort, 2, 4)[-1]
    fails.append(True)
    lengths = list(cohort.table.lengths)
    with pytest.raises(RuntimeError, match="injected"):
        forward(cohort, 2, mx.argmax(before, axis=-1)[:, None])
    fails.clear()
    assert cohort.table.lengths == lengths
    again = steps(forward, cohort, 2, 1)[0]
    for row in range(2):
        cohort.table.rollback(row, 1)
    plain = steps(Replay(model), cohort, 2, 1)[0]
    assert mx.array_equal(again, plain).item()
