"""The ceiling on state, lack of memory, and what is left when everything has gone."""

import gc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from bramley.common.errors import DeviceOom, EngineFault
from bramley.worker.cache.saved import Saving
from bramley.worker.engine import decoding, steps, watchdog
from bramley.worker.engine.cohort import Cohort
from bramley.worker.engine.faults import is_lack_of_memory, told
from bramley.worker.models.contract import LanguageModel
from bramley.worker.request import LogprobRule
from support.engines import InProcessEngine, oracle, request
from support.tiny_models import build

SCOPE = b"scope"
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, size, float32
# Metal's and CUDA's words; the CPU's allocator does not fail but ends the process.
SHORT = "[metal::malloc] Attempting to allocate 48736917632 bytes which is greater than ..."


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build("full", seed=5)


class Hungry:
    """A model that asks the device for more than there is, when told to."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self.prefills = 0  # how many more prefills ask for too much
        self.decodes = 0

    def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
        logits = self._model(inputs, cache=cache)
        which = "prefills" if inputs.shape[1] > 1 else "decodes"
        left = getattr(self, which)
        if left:
            setattr(self, which, left - 1)
            raise RuntimeError(SHORT)
        return logits


def test_mlx_s_own_words_for_no_memory_are_understood() -> None:
    for words in (SHORT, "[malloc_or_wait] Unable to allocate 7 bytes.", "out of memory"):
        assert is_lack_of_memory(RuntimeError(words))
        assert isinstance(told(RuntimeError(words)), DeviceOom)
    assert not is_lack_of_memory(ValueError(SHORT))
    assert isinstance(told(ValueError("planted")), EngineFault)


def test_a_passing_lack_of_memory_is_met_by_letting_go_of_parked_rows(
    model: LanguageModel,
) -> None:
    hungry = Hungry(model)
    engine = InProcessEngine(hungry)
    first = engine.run(request("first", tokens(1, 40), scope=SCOPE))["first"]
    assert engine.engine.counters.parked == 1
    hungry.prefills = 1
    assert engine.run(request("again", tokens(2, 40)))["again"] == oracle(
        model, request("x", tokens(2, 40))
    )
    assert engine.engine.counters.parked == 0
    hungry.decodes = 1
    assert engine.run(request("third", tokens(1, 40)))["third"] == first
    engine.close()


def test_a_prompt_without_memory_fails_alone(model: LanguageModel) -> None:
    hungry = Hungry(model)
    engine = InProcessEngine(hungry)
    engine.submit(request("runs", tokens(3, 20), max_tokens=200))
    engine.until(lambda: len(engine.outcomes["runs"].tokens) > 5)
    hungry.prefills = 2
    engine.submit(request("guilty", tokens(4, 40)))
    assert isinstance(engine.finished("guilty")["guilty"].error, DeviceOom)
    engine.finished("runs")
    assert engine.outcomes["runs"].tokens == oracle(
        model, request("x", tokens(3, 20), max_tokens=200)
    )
    engine.close()


def test_a_decode_without_memory_ends_the_newest_row(model: LanguageModel) -> None:
    hungry = Hungry(model)
    engine = InProcessEngine(hungry)
    engine.submit(request("old", tokens(3, 20), max_tokens=100))
    engine.until(lambda: len(engine.outcomes["old"].tokens) > 2)
    engine.submit(request("new", tokens(4, 20), max_tokens=100))
    engine.until(lambda: len(engine.outcomes["new"].tokens) > 2)
    hungry.decodes = 2
    assert isinstance(engine.finished("new")["new"].error, DeviceOom)
    engine.finished("old")
    assert engine.outcomes["old"].tokens == oracle(
        model, request("x", tokens(3, 20), max_tokens=100)
    )
    engine.close()


def test_tokens_that_cannot_be_read_are_nobody_s(model: LanguageModel) -> None:
    engine = InProcessEngine(model)
    engine.submit(*[request(f"{n}", tokens(n, 20), max_tokens=200) for n in range(3)])
    engine.until(lambda: all(len(one.tokens) > 3 for one in engine.outcomes.values()))
    failing = iter([RuntimeError(SHORT)] * 2)
    real = decoding.read

    def fail_twice(flight: decoding.Flight) -> Iterator[decoding.Drawn]:
        if error := next(failing, None):
            raise error
        return real(flight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "read", fail_twice)
        outcomes = engine.finished("0", "1", "2")
    for n in range(3):
        alone = oracle(model, request("x", tokens(n, 20), max_tokens=200))
        assert isinstance(outcomes[f"{n}"].error, DeviceOom)
        assert outcomes[f"{n}"].tokens == alone[: len(outcomes[f"{n}"].tokens)]
    engine.close()


@pytest.mark.parametrize("phase", ["prompt", "end"])
def test_a_save_that_fails_ends_its_request_alone(model: LanguageModel, phase: str) -> None:
    engine = InProcessEngine(model)

    def stage(size: int) -> None:
        raise OSError("planted")

    prompt = tokens(1, 400) if phase == "prompt" else tokens(1, 20)
    saving = Saving(stage=stage, boundary=len(prompt), extent_blocks=1)
    engine.submit(
        request("saves", prompt, max_tokens=40, saving=saving),
        request("other", tokens(2, 20), max_tokens=40),
    )
    outcomes = engine.finished("saves", "other")
    assert isinstance(outcomes["saves"].error, EngineFault)
    assert outcomes["other"].tokens == oracle(model, request("x", tokens(2, 20), max_tokens=40))
    engine.close()


def test_a_prompt_s_logprobs_are_told_once_though_memory_was_short(model: LanguageModel) -> None:
    engine = InProcessEngine(model)
    engine.run(request("warm", tokens(3, 20)))
    evaluate, failing = Cohort.evaluate, iter([RuntimeError(SHORT)])

    def fail_once(cohort: Cohort, *more: mx.array) -> None:
        if error := next(failing, None):
            raise error
        evaluate(cohort, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cohort, "evaluate", fail_once)
        engine.run(request("asks", tokens(1, 60), logprobs=LogprobRule(prompt=True)))
    assert len(engine.outcomes["asks"].prompt_logprobs) == 59
    engine.close()


def test_the_ceiling_makes_requests_wait_and_parked_rows_go(model: LanguageModel) -> None:
    ceiling = 1200 * TOKEN_BYTES
    engine = InProcessEngine(model, state_bytes=ceiling)
    engine.run(request("parks", tokens(5, 200), scope=SCOPE, max_tokens=4))
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, sum(cohort.nbytes for cohort in engine.cohorts))

    for step in range(1, 2000):
        engine.at_step[engine.step + step] = watch
    together = [request(f"{n}", tokens(80 + n, 200), max_tokens=20) for n in range(6)]
    answers = engine.run(*together)
    for n in range(6):
        assert answers[f"{n}"] == oracle(model, request("x", tokens(80 + n, 200), max_tokens=20))
    assert 0 < most <= ceiling
    assert engine.engine.counters.parked == 0
    engine.close()


def test_rows_that_grow_over_the_ceiling_are_sent_back_and_answered_in_full(
    model: LanguageModel,
) -> None:
    ceiling = 3 * 512 * TOKEN_BYTES - 1
    engine = InProcessEngine(model, state_bytes=ceiling)
    together = [request(f"{n}", tokens(90 + n, 100), max_tokens=500) for n in range(2)]
    answers = engine.run(*together)
    assert engine.engine.counters.preemptions > 0
    for n in range(2):
        assert answers[f"{n}"] == oracle(model, request("x", tokens(90 + n, 100), max_tokens=500))
    assert sum(cohort.nbytes for cohort in engine.cohorts) <= ceiling
    engine.close()


def test_what_does_not_fit_alone_is_refused_with_the_numbers(model: LanguageModel) -> None:
    engine = InProcessEngine(model, state_bytes=640 * TOKEN_BYTES)
    engine.run(request("small", tokens(1, 20)))  # the model tells what a token takes
    engine.submit(request("big", tokens(2, 2000)))
    error = engine.finished("big")["big"].error
    assert isinstance(error, DeviceOom)
    assert str(560 * TOKEN_BYTES) in error.message
    engine.submit(request("grows", tokens(3, 100), max_tokens=2000))
    assert isinstance(engine.finished("grows")["grows"].error, DeviceOom)
    assert len(engine.outcomes["grows"].tokens) > 100
    engine.close()


def test_state_is_what_active_memory_says(model: LanguageModel) -> None:
    engine = InProcessEngine(model, chunk_tokens=256)
    engine.run(request("warm", tokens(1, 20)))
    engine.idle()
    gc.collect()  # what earlier tests left
    before = mx.get_active_memory() - sum(cohort.nbytes for cohort in engine.cohorts)
    engine.run(*[request(f"{n}", tokens(n, 900), scope=SCOPE, max_tokens=30) for n in range(8)])
    engine.idle()
    state = sum(cohort.nbytes for cohort in engine.cohorts)
    assert state > 8 * 900 * TOKEN_BYTES
    assert mx.get_active_memory() - before == pytest.approx(state, rel=0.01)
    assert engine.engine.counters.state_bytes == state
    engine.close()


def test_b064_a_storm_of_cancels_leaves_nothing_behind(model: LanguageModel) -> None:
    engine = InProcessEngine(model, chunk_tokens=32)
    levels: list[int] = []
    gc.collect()  # what earlier tests left
    engine.run(*[request(f"warm {n}", tokens(n, 76), max_tokens=400) for n in range(8)])
    for turn in range(3):
        names = [f"{turn} {n}" for n in range(40)]
        for n, name in enumerate(names):
            engine.submit(request(name, tokens(n, 20 + 7 * (n % 9)), max_tokens=400))
        seen = engine.outcomes[names[turn]].tokens
        engine.until(lambda seen=seen, turn=turn: len(seen) > turn)
        for name in names:
            engine.engine.cancel(name)
        engine.idle()
        engine.run(request(f"{turn} after", tokens(1, 30)))
        engine.idle()
        levels.append(mx.get_active_memory())
    assert max(levels) <= 1.01 * min(levels)
    engine.close()


def test_a_stalled_step_ends_the_process() -> None:
    code = (
        "import threading, time, types; from bramley.worker.engine.watchdog import watch;"
        "progress = types.SimpleNamespace(step_began_s=time.monotonic());"
        "watch(progress, 0.4, threading.Event()); time.sleep(30)"
    )
    began_s = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], check=False, timeout=25)
    assert ended.returncode == 71
    assert time.monotonic() - began_s < 20


def test_an_engine_that_was_stopped_is_not_taken_for_a_stalled_one(model: LanguageModel) -> None:
    died: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watchdog, "_leave", lambda: died.append(1))
        engine = InProcessEngine(model, stall_timeout_s=1.0)
        engine.submit(request("runs", tokens(1, 20), max_tokens=3000))
        engine.until(lambda: len(engine.outcomes["runs"].tokens) > 3)
        engine.close()  # within a step, as far as the counters tell
        for thread in threading.enumerate():
            if thread.name == "watchdog":
                thread.join(5.0)
    assert not died


def test_an_idle_engine_is_not_taken_for_a_stalled_one(model: LanguageModel) -> None:
    gave_up = threading.Event()
    engine = InProcessEngine(model)
    from bramley.worker.engine.watchdog import watch

    watch(engine.engine.counters, 0.2, threading.Event(), gave_up.set)
    engine.run(request("a", tokens(1, 20)))
    assert not gave_up.wait(0.6)
    engine.close()


class Explosive(frozenset[int]):
    """Ids that nothing may be looked up in."""

    def __contains__(self, token: object) -> bool:
        raise LookupError("planted")


def test_a_row_s_own_fault_ends_that_row(model: LanguageModel) -> None:
    engine = InProcessEngine(model)
    engine.submit(
        request("good", tokens(2, 20), max_tokens=20),
        request("bad", tokens(1, 20), max_tokens=20, eos=Explosive()),
    )
    outcomes = engine.finished("good", "bad")
    assert isinstance(outcomes["bad"].error, EngineFault)
    assert outcomes["good"].tokens == oracle(model, request("x", tokens(2, 20), max_tokens=20))
    engine.close()
