"""The engine's own behaviour: seeds, cancels, faults, limits, what is left behind."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import pytest

from bramley.common.errors import EngineFault, Overloaded
from bramley.worker.engine.stopping import Finish
from bramley.worker.models.contract import LanguageModel
from bramley.worker.sampling.params import SamplingParams
from support.engines import InProcessEngine, oracle, request
from support.tiny_models import build

PROMPT = [10, 20, 30, 40]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build("full", seed=5)


@pytest.fixture
def engine(model: LanguageModel) -> Iterator[InProcessEngine]:
    made = InProcessEngine(model)
    yield made
    made.close()


def sampled(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, top_p=0.95, seed=seed)


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(
    model: LanguageModel, engine: InProcessEngine
) -> None:
    alone = [oracle(model, request(f"{s}", PROMPT, sampling=sampled(s))) for s in range(4)]
    together = engine.run(
        *[request(f"{s}", PROMPT, sampling=sampled(s)) for s in range(4)],
        request("greedy", PROMPT),
    )
    assert [together[f"{s}"] for s in range(4)] == alone
    assert len({tuple(tokens) for tokens in alone}) == 4


def test_an_end_token_ends_a_row_and_its_seat_serves_the_next(engine: InProcessEngine) -> None:
    tokens = engine.run(request("all", PROMPT, max_tokens=12))["all"]
    end = next(token for token in tokens[3:] if token not in tokens[:3])
    engine.run(request("ends", PROMPT, max_tokens=12, eos=frozenset({end})))
    assert engine.outcomes["ends"].finish == Finish("stop", end)
    assert engine.outcomes["ends"].tokens == tokens[: tokens.index(end) + 1]
    assert engine.run(request("next", PROMPT, max_tokens=12))["next"] == tokens


def test_one_token_is_one_token(engine: InProcessEngine) -> None:
    engine.run(request("one", PROMPT, max_tokens=1))
    assert engine.outcomes["one"].finish == Finish("length")
    assert len(engine.outcomes["one"].tokens) == 1


def test_progress_is_told_after_each_chunk_to_those_who_ask(model: LanguageModel) -> None:
    engine = InProcessEngine(model, chunk_tokens=16)
    engine.run(request("asks", [1] * 50, wants_progress=True), request("silent", [1] * 50))
    assert engine.outcomes["asks"].progress == [16, 32, 48, 49]
    assert engine.outcomes["silent"].progress == []
    engine.close()


def test_b058_a_request_cancelled_while_waiting_is_never_computed(model: LanguageModel) -> None:
    engine = InProcessEngine(model, max_rows=1)
    engine.submit(request("a", PROMPT, max_tokens=3000))
    engine.until(lambda: bool(engine.outcomes["a"].tokens))
    engine.submit(*[request(name, PROMPT, max_tokens=4) for name in "bcd"])
    engine.until(lambda: engine.engine.counters.waiting == 3)
    engine.engine.cancel("c")
    engine.until(lambda: engine.engine.counters.waiting == 2)
    before = engine.engine.counters.prompt_tokens
    engine.engine.cancel("a")
    engine.finished("b", "d")
    engine.idle()
    assert engine.outcomes["c"].tokens == []
    assert engine.engine.counters.prompt_tokens - before == 2 * len(PROMPT)
    engine.close()


@pytest.mark.parametrize("tokens_seen", [0, 1, 3])
def test_b057_a_cancel_frees_the_row_within_a_step(
    engine: InProcessEngine, tokens_seen: int
) -> None:
    for turn in range(10):
        name = f"cancelled {turn}"
        engine.submit(request(name, PROMPT * 40, max_tokens=3000))
        engine.until(lambda name=name: len(engine.outcomes[name].tokens) >= tokens_seen)
        engine.engine.cancel(name)
        engine.idle()
        assert not engine.cohort.slots
    expected = engine.run(request("fresh", PROMPT))["fresh"]
    assert engine.run(request("again", PROMPT))["again"] == expected


def test_more_than_may_wait_are_refused(model: LanguageModel) -> None:
    engine = InProcessEngine(model, max_rows=1, waiting_max=2)
    engine.submit(request("runs", PROMPT, max_tokens=3000))
    engine.until(lambda: engine.engine.counters.running == 1)
    engine.submit(request("b", PROMPT), request("c", PROMPT))
    with pytest.raises(Overloaded) as raised:
        engine.submit(request("d", PROMPT))
    assert raised.value.facts == {"depth": "2"}
    engine.engine.cancel("runs")
    engine.finished("b", "c")
    engine.close()


class Faulty:
    """A model that fails on command."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.raises = 0
        self.poison_row: int | None = None

    def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
        logits = self._model(inputs, cache=cache)
        if self.raises:
            self.raises -= 1
            raise ValueError("planted")
        if self.poison_row is not None and inputs.shape[1] == 1:
            row, self.poison_row = self.poison_row, None
            logits[row] = mx.full(logits.shape[1:], float("nan"))
        return logits


def test_a_failed_step_ends_its_rows_and_the_engine_serves_on(model: LanguageModel) -> None:
    faulty = Faulty(model)
    engine = InProcessEngine(faulty)
    expected = engine.run(request("before", PROMPT))["before"]

    def fail() -> None:
        faulty.raises = 1

    engine.at_step[engine.step + 3] = fail
    engine.submit(request("a", PROMPT, max_tokens=50), request("b", PROMPT, max_tokens=50))
    outcomes = engine.finished("a", "b")
    for outcome in outcomes.values():
        assert isinstance(outcome.error, EngineFault)
        assert "planted" in outcome.error.message
    assert engine.run(request("after", PROMPT))["after"] == expected
    engine.close()


def test_a_row_without_finite_scores_ends_alone(model: LanguageModel) -> None:
    faulty = Faulty(model)
    engine = InProcessEngine(faulty)
    expected = engine.run(request("before", PROMPT, max_tokens=20))["before"]

    def poison() -> None:
        faulty.poison_row = 0

    engine.at_step[engine.step + 6] = poison
    engine.submit(*[request(name, PROMPT, max_tokens=20) for name in ("a", "b")])
    outcomes = engine.finished("a", "b")
    assert isinstance(outcomes["a"].error, EngineFault)
    assert outcomes["b"].tokens == expected
    assert engine.run(request("after", PROMPT, max_tokens=20))["after"] == expected
    engine.close()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_whose_state_went_wrong_ends_alone_and_its_seat_serves_others(
    model: LanguageModel, place: int
) -> None:
    engine = InProcessEngine(model)
    names = ("a", "b", "c")
    expected = engine.run(request("alone", PROMPT, max_tokens=30))["alone"]

    def spoil() -> None:
        for layer in engine.cohort.layers:
            for array in layer.arrays():
                array[place, :, :2] = float("nan")

    engine.at_step[engine.step + 8] = spoil
    engine.submit(*[request(name, PROMPT, max_tokens=30) for name in names])
    outcomes = engine.finished(*names)
    wrong = [name for name in names if outcomes[name].error is not None]
    assert len(wrong) == 1
    assert all(outcomes[name].tokens == expected for name in names if name not in wrong)
    after = engine.run(*[request(f"after {i}", PROMPT, max_tokens=30) for i in range(4)])
    assert set(map(tuple, after.values())) == {tuple(expected)}
    engine.close()


def test_b065_the_model_is_loaded_and_stepped_on_one_thread(model: LanguageModel) -> None:
    seen: set[str] = set()

    class Watched:
        def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
            seen.add(threading.current_thread().name)
            return model(inputs, cache=cache)

    engine = InProcessEngine(Watched())
    engine.run(request("a", PROMPT))
    engine.submit(request("b", PROMPT, max_tokens=500))
    threading.Thread(target=engine.engine.cancel, args=("b",)).start()  # from any thread
    engine.idle()
    engine.close()
    assert seen == {"engine"}
