"""Faults at awkward places: who pays, and what is left."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from bramley.common.errors import DeviceOom, EngineFault
from bramley.worker.cache.arrays import KeysAndValues
from bramley.worker.cache.saved import Saving
from bramley.worker.cache.window import Window
from bramley.worker.engine import saver, steps
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.decoding import Decoder
from bramley.worker.models.contract import LanguageModel
from bramley.worker.request import LogprobRule, Priority
from bramley.worker.sampling.params import SamplingParams
from support.engines import InProcessEngine, Outcome, oracle, request
from support.rows import Rows
from support.shelf import Room
from support.tiny_models import build

SCOPE = b"scope"
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, float32
SHORT = "[metal::malloc] Attempting to allocate 48736917632 bytes which is greater than ..."


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


def ceiling(columns: int) -> int:
    """The ``state_bytes`` that leave so many columns to rows."""
    return -(-columns * TOKEN_BYTES * 8 // 7)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build("full", seed=5)


@pytest.fixture
def death(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the engine's thread gives up, instead of the end of the process."""
    died = threading.Event()

    def die(code: int) -> None:
        assert code
        died.set()

    monkeypatch.setattr("os._exit", die)
    monkeypatch.setattr("logging.shutdown", lambda: None)
    return died


class Failing:
    """Makes a method raise, a few times from now on, or after it was let through some times."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.left = 0
        self.lets = 0
        self._real: Callable[..., Any] = getattr(owner, name)
        failing = self

        def instead(*args: Any, **kwargs: Any) -> Any:
            if failing.left and failing.lets:
                failing.lets -= 1
            elif failing.left:
                failing.left -= 1
                raise RuntimeError(SHORT)
            return failing._real(*args, **kwargs)

        patch.setattr(owner, name, instead)


def test_state_stays_under_its_ceiling_at_widths_that_are_rounded_up(model: LanguageModel) -> None:
    engine = InProcessEngine(model, state_bytes=ceiling(2 * 600))
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, sum(cohort.nbytes for cohort in engine.cohorts))
        engine.at_step[engine.step + 1] = watch

    engine.at_step[1] = watch
    engine.run(*[request(f"{n}", tokens(n, 100), max_tokens=320) for n in range(2)])
    assert most <= 2 * 600 * TOKEN_BYTES
    engine.close()


def test_what_fits_alone_is_served(model: LanguageModel) -> None:
    engine = InProcessEngine(model, state_bytes=ceiling(256))
    engine.run(request("warm", tokens(1, 20), max_tokens=4))
    assert len(engine.run(request("fits", tokens(2, 200), max_tokens=10))["fits"]) == 10
    engine.close()


def test_a_row_that_was_sent_back_is_served_where_it_fits_alone(model: LanguageModel) -> None:
    engine = InProcessEngine(model, state_bytes=ceiling(512), max_rows=1)
    bulk = request("bulk", tokens(1, 200), max_tokens=150, priority=Priority.BULK)
    engine.submit(bulk)
    engine.until(lambda: len(engine.outcomes["bulk"].tokens) > 80)
    engine.run(request("urgent", tokens(2, 12)))
    assert engine.finished("bulk")["bulk"].error is None
    engine.close()


def test_a_chunk_beside_a_longer_row_sends_nobody_back(model: LanguageModel) -> None:
    engine = InProcessEngine(model, state_bytes=ceiling(2 * 768), chunk_tokens=512)
    joins = request("joins", tokens(2, 500), max_tokens=10)
    engine.at_step[190] = lambda: engine.submit(joins)
    engine.submit(request("long", tokens(1, 500), max_tokens=260))
    engine.finished("long")
    engine.finished("joins")
    assert engine.engine.counters.preemptions == 0  # 760 and 510 tokens: both fit all the while
    engine.close()


def test_a_chunk_that_was_tried_again_gives_its_logprobs_once(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = Failing(monkeypatch, Cohort, "evaluate")
    engine = InProcessEngine(model)
    evaluate.left = 1
    asked = request("asks", tokens(1, 40), logprobs=LogprobRule(prompt=True), max_tokens=2)
    engine.run(asked)
    assert len(engine.outcomes["asks"].prompt_logprobs) == 39
    engine.close()


def test_a_flight_that_cannot_be_read_costs_nobody_who_goes_on_a_token(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = Failing(monkeypatch, steps, "read")
    engine = InProcessEngine(model)
    engine.submit(request("old", tokens(1, 20), max_tokens=300))
    engine.until(lambda: len(engine.outcomes["old"].tokens) > 2)
    engine.submit(request("new", tokens(2, 20), max_tokens=300))
    engine.until(lambda: len(engine.outcomes["new"].tokens) > 2)
    reads.left = 2
    outcomes = engine.finished()
    assert isinstance(outcomes["new"].error, DeviceOom)
    assert outcomes["old"].error is not None or outcomes["old"].tokens == oracle(
        model, request("x", tokens(1, 20), max_tokens=300)
    )
    engine.close()


def test_a_draw_without_memory_ends_the_newest_row(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = Failing(monkeypatch, Decoder, "_draw")
    penalised = SamplingParams(frequency_penalty=0.5)
    engine = InProcessEngine(model)
    engine.submit(request("old", tokens(1, 20), max_tokens=300, sampling=penalised))
    engine.until(lambda: len(engine.outcomes["old"].tokens) > 2)
    engine.submit(request("new", tokens(2, 20), max_tokens=300, sampling=penalised))
    engine.until(lambda: len(engine.outcomes["new"].tokens) > 2)
    draws.left = 2
    outcomes = engine.finished()
    assert isinstance(outcomes["new"].error, DeviceOom)
    assert outcomes["old"].tokens == oracle(
        model, request("x", tokens(1, 20), max_tokens=300, sampling=penalised)
    )
    engine.close()


@dataclass
class Moment:
    """When a method of the cohort finds no memory."""

    method: str
    at: str
    parked_bytes: int = 1 << 30


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(Moment("leave", "cancel"), id="a cancel"),
        pytest.param(Moment("leave", "end"), id="an end"),
        pytest.param(Moment("fit", "end", parked_bytes=0), id="a parked row that goes"),
        pytest.param(Moment("start_decoding", "start"), id="a prompt that is computed"),
        pytest.param(Moment("leave", "start"), id="a parked row whose seat is needed"),
    ],
)
def test_no_memory_to_move_a_row_is_not_the_end_of_the_engine(
    model: LanguageModel,
    monkeypatch: pytest.MonkeyPatch,
    death: threading.Event,
    moment: Moment,
) -> None:
    moves = Failing(monkeypatch, Cohort, moment.method)
    engine = InProcessEngine(model, max_rows=2, parked_bytes=moment.parked_bytes)
    engine.run(*[request(f"{n}", tokens(5 + n, 20), scope=SCOPE, max_tokens=2) for n in range(2)])
    engine.submit(request("old", tokens(1, 20), max_tokens=400))
    engine.until(lambda: len(engine.outcomes["old"].tokens) > 2)
    moves.left = moment.at == "start"
    scope = SCOPE if moment.method == "fit" else b""
    engine.submit(request("new", tokens(2, 20), max_tokens=200, scope=scope))
    if moment.at != "start":
        engine.until(lambda: len(engine.outcomes["new"].tokens) > 2)
        moves.left = 1
    if moment.at == "cancel":
        engine.engine.cancel("new")
    engine.until(lambda: death.is_set() or engine.outcomes["old"].finish is not None)
    assert not death.is_set()
    engine.idle()
    assert not death.is_set()
    engine.close()


def saving(room: Room) -> Saving:
    return Saving(stage=lambda _: room, boundary=260, extent_blocks=1)


def test_a_copy_that_fails_ends_its_request_at_most(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, death: threading.Event
) -> None:
    copies = Failing(monkeypatch, saver, "copy_out")
    engine = InProcessEngine(model)
    copies.left = 1
    room = Room(memoryview(bytearray(1 << 20)))
    saves = request("saves", tokens(1, 300), saving=saving(room))
    engine.submit(saves, request("beside", tokens(2, 20)))
    engine.until(lambda: death.is_set() or all(map(has_ended, engine.outcomes.values())))
    assert not death.is_set()
    assert room.is_released
    assert engine.outcomes["beside"].tokens == oracle(model, request("x", tokens(2, 20)))
    engine.close()


def has_ended(outcome: Outcome) -> bool:
    return outcome.finish is not None or outcome.error is not None


def test_several_answers_share_one_prefill_when_its_logprobs_are_asked_for(
    model: LanguageModel,
) -> None:
    engine = InProcessEngine(model)
    leader = request("0", tokens(1, 50), logprobs=LogprobRule(prompt=True))
    rule = LogprobRule()
    others = [request(f"{n}", tokens(1, 50), leader=leader, logprobs=rule) for n in range(1, 4)]
    engine.run(leader, *others)
    assert len(engine.outcomes["0"].prompt_logprobs) == 49
    assert engine.engine.counters.prompt_tokens == 49 + 4
    engine.close()


class Poisoned:
    """A model whose first chunks, so many, leave a row's state wrong."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.left = 0

    def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
        logits = self._model(inputs, cache=cache)
        if inputs.shape[1] > 1 and self.left:
            self.left -= 1
            for layer in cache:
                for array in layer.arrays():
                    array[0, :, :2] = float("nan")
        return logits


def test_a_row_that_went_wrong_is_nobody_s_beginning(model: LanguageModel) -> None:
    poisoned = Poisoned(model)
    engine = InProcessEngine(poisoned, chunk_tokens=16)
    engine.run(request("warm", tokens(9, 20), max_tokens=1))
    poisoned.left = 1
    good = request("good", [*tokens(1, 40), 7], scope=SCOPE)
    engine.at_step[engine.step + 1] = lambda: engine.submit(good)
    engine.submit(request("bad", tokens(1, 40), scope=SCOPE, wants_progress=True))
    engine.finished("bad")
    engine.until(lambda: "good" in engine.outcomes)
    engine.finished()
    assert engine.outcomes["bad"].error is not None
    assert engine.outcomes["good"].tokens == oracle(model, request("x", [*tokens(1, 40), 7]))
    engine.close()


def test_a_row_that_went_wrong_is_not_stored(model: LanguageModel) -> None:
    poisoned = Poisoned(model)
    engine = InProcessEngine(poisoned, chunk_tokens=512)
    engine.run(request("warm", tokens(9, 20), max_tokens=1))
    poisoned.left = 1
    room = Room(memoryview(bytearray(1 << 20)))
    engine.submit(request("bad", tokens(1, 300), saving=saving(room)))
    assert isinstance(engine.finished("bad")["bad"].error, EngineFault)
    assert not engine.outcomes["bad"].saved
    engine.close()


@pytest.mark.parametrize("lets", range(4))  # two rows of two layers
def test_rows_that_were_exchanged_by_half_answer_nobody(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch, lets: int
) -> None:
    copies = Failing(monkeypatch, KeysAndValues, "_copies")
    engine = InProcessEngine(model)
    ends = request("ends", tokens(1, 20), max_tokens=5, scope=b"one")  # and trades places then
    goes_on = request("goes on", tokens(2, 20), max_tokens=60, scope=b"one")

    def arm() -> None:
        copies.lets, copies.left = lets, 1

    engine.at_step[4] = arm
    engine.submit(ends, goes_on)
    engine.until(lambda: all(one.finish or one.error for one in engine.outcomes.values()))
    assert copies.left == 0
    right = oracle(model, request("x", tokens(2, 20), max_tokens=60))
    outcome = engine.outcomes["goes on"]
    assert outcome.tokens == right[: len(outcome.tokens)]
    assert (outcome.error is None) == (lets < 2)  # the first layer's rows were as they had been
    again = engine.run(request("again", tokens(2, 20), max_tokens=60))["again"]
    assert again == right
    engine.close()


def test_a_commit_that_fails_between_two_windows_ends_its_cohort_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = Rows.of("mixture", [range(75)])
    before = rows.read(0)
    commits = Failing(monkeypatch, Window, "commit")
    commits.lets, commits.left = 1, 1
    with pytest.raises(RuntimeError):
        rows.append([range(500, 590)])
    assert rows.table.is_torn
    rows = Rows.of("mixture", [range(75)])
    commits.lets, commits.left = 0, 1
    with pytest.raises(RuntimeError):
        rows.append([range(500, 590)])
    assert not rows.table.is_torn
    for now, was in zip(rows.read(0), before, strict=True):
        np.testing.assert_array_equal(now, was)
