"""Public cases of mixed batches and of reuse, on every kind of state that is served.

Each answer is compared with what mlx-lm's own loop gives to the prompt alone and cold.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import llama
from mlx_lm.models.cache import KVCache, QuantizedKVCache, RotatingKVCache

from bramley.worker.cache.build import build_states
from bramley.worker.cache.table import RowTable
from bramley.worker.models.contract import Lane
from bramley.worker.models.mlx_lm import layer_caches
from bramley.worker.request import LogprobRule, Priority, TokenLogprob
from support.engines import InProcessEngine, Outcome, request
from support.kinds import KINDS, Kind
from support.shelf import Shelf
from support.tiny_models import config_of, draw
from support.zoo.lanes import lane_of

SLOW = pytest.mark.slow  # the same way through as another value
SCOPE = b"one namespace"
TOKENS = 10
LENGTHS = (1, 2, 3, 7, 8, 9, 20, 33)  # the windows are of 8
UNDO = 32  # tokens, at least, that a window keeps to go back over


# Of each way in which state is kept or rows are run, one.
FIRST = (
    "full",
    "window, sinks",
    "latent",
    "state space beside attention in each layer",
    "gated delta",
    "prompts apart: rwkv",
    "own caches",
)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in FIRST else SLOW) for name in KINDS],
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind.make(request.param)


@pytest.fixture
def engine(kind: Kind) -> Iterator[InProcessEngine]:
    made = kind.engine()
    yield made
    made.close()


def prompt_of(length: int, seed: int = 7) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]


PROMPTS = {f"{length} tokens": prompt_of(length, length) for length in LENGTHS}


def oracle(kind: Kind) -> dict[str, list[int]]:
    expected = {name: kind.cold(prompt, TOKENS) for name, prompt in PROMPTS.items()}
    assert len({tuple(answer) for answer in expected.values()}) == len(expected), "answers differ"
    return expected


def test_b012_rows_of_all_lengths_equal_each_alone(kind: Kind, engine: InProcessEngine) -> None:
    together = [request(name, prompt, max_tokens=TOKENS) for name, prompt in PROMPTS.items()]
    assert engine.run(*together) == oracle(kind)


def test_b012_rows_that_join_equal_each_alone(kind: Kind, engine: InProcessEngine) -> None:
    first, *later = [request(name, prompt, max_tokens=TOKENS) for name, prompt in PROMPTS.items()]
    for step, one in zip((2, 3, 4, 5, 7, 9, 11), later, strict=True):
        engine.at_step[step] = lambda one=one: engine.submit(one)
    engine.submit(first)
    engine.until(lambda: len(engine.outcomes) == len(PROMPTS))
    assert {name: one.tokens for name, one in engine.finished().items()} == oracle(kind)


def test_b012_a_row_cancelled_midway_changes_no_other(kind: Kind, engine: InProcessEngine) -> None:
    gone = "1 tokens"  # the first, which every lane seats at once
    together = [request(name, prompt, max_tokens=TOKENS) for name, prompt in PROMPTS.items()]
    engine.at_step[6] = lambda: engine.engine.cancel(gone)
    engine.submit(*together)
    others = [name for name in PROMPTS if name != gone]
    answers = {name: one.tokens for name, one in engine.finished(*others).items()}
    assert answers == {name: oracle(kind)[name] for name in others}
    engine.idle()
    cut_short = engine.outcomes[gone].tokens
    assert 0 < len(cut_short) < TOKENS
    assert cut_short == oracle(kind)[gone][: len(cut_short)]


def test_b013_rows_join_one_that_has_wrapped_and_all_are_reused_together(
    kind: Kind, engine: InProcessEngine
) -> None:
    prompts = {f"{length} tokens": prompt_of(length, length) for length in (25, 1, 7, 8, 9, 17)}
    first, *later = [
        request(name, prompt, max_tokens=16, scope=SCOPE) for name, prompt in prompts.items()
    ]
    engine.at_step[6] = lambda: engine.submit(*later)
    engine.submit(first)
    engine.until(lambda: len(engine.outcomes) == len(prompts))
    answers = {name: outcome.tokens for name, outcome in engine.finished().items()}
    assert answers == {name: kind.cold(prompt, 16) for name, prompt in prompts.items()}

    following = {name: [*prompts[name], *answers[name], 5, 6, 7] for name in prompts}
    turns = [request(name, ids, max_tokens=TOKENS, scope=SCOPE) for name, ids in following.items()]
    assert engine.run(*turns) == {name: kind.cold(ids, TOKENS) for name, ids in following.items()}
    held = [len(following[name]) - 4 for name in prompts]  # all but the last token's state
    reused = [engine.outcomes[name].parked for name in prompts]
    assert reused == held if kind.rows_max > 1 else set(reused) <= {0, *held}


# mlx-lm adds up a Mamba 2 state over runs of 256 columns, counted from where a forward starts.
BY_LONG_RUNS = {"state space alone", "state space beside attention in each layer"}


@pytest.mark.parametrize("chunk", [16, pytest.param(48, marks=SLOW), pytest.param(112, marks=SLOW)])
def test_a_prompt_in_the_scheduler_s_pieces_is_the_whole_bit_for_bit(
    kind: Kind, chunk: int
) -> None:
    prompt = prompt_of(203)
    told: list[list[TokenLogprob]] = []
    for most in (2048, chunk):
        engine = kind.engine(chunk_tokens=most)
        one = request("one", prompt, max_tokens=4, logprobs=LogprobRule(3), wants_progress=True)
        engine.run(one)
        pieces = engine.outcomes["one"].progress
        assert pieces == [*range(most, 202, most), 202]
        told.append(engine.outcomes["one"].logprobs)
        engine.close()
    assert [one.top_ids for one in told[0]] == [one.top_ids for one in told[1]]
    whole, in_pieces = ([one.top_logprobs for one in each] for each in told)
    bound = 1e-5 if kind.name in BY_LONG_RUNS else 0
    np.testing.assert_allclose(in_pieces, whole, rtol=0, atol=bound)


def quantized(window: int) -> nn.Module:
    """Make a model that asks for quantized keys and values; beside a window, if there is one."""
    shape = {"head_dim": 32, "hidden_size": 128}
    model = llama.Model(llama.ModelArgs.from_dict({**config_of("full"), **shape}))
    draw(model, 5)
    other = (lambda: RotatingKVCache(window)) if window else KVCache
    cast("Any", model).make_cache = lambda: [QuantizedKVCache(group_size=32, bits=8), other()]
    return model


@pytest.mark.parametrize("window", [0, 8])
def test_b015_what_a_model_quantizes_by_itself_is_served_one_at_a_time(window: int) -> None:
    model = quantized(window)
    layers = layer_caches(model)
    assert [layer.kind for layer in layers] == ["unknown", "rotating" if window else "full"]
    with pytest.raises(ValueError, match="state of kind unknown is not served"):
        build_states(RowTable(), layers)
    assert lane_of(model) is Lane.OWN
    kind = Kind("quantized", model, model, Lane.OWN, frozenset({"unknown"}))
    engine = kind.engine()
    prompts = {f"{length} tokens": prompt_of(length, length) for length in (3, 20)}
    later = request("20 tokens", prompts["20 tokens"], max_tokens=TOKENS, scope=SCOPE)
    engine.at_step[2] = lambda: engine.submit(later)
    engine.submit(request("3 tokens", prompts["3 tokens"], max_tokens=TOKENS, scope=SCOPE))
    engine.until(lambda: len(engine.outcomes) == len(prompts))
    answers = {name: one.tokens for name, one in engine.finished().items()}
    assert answers == {name: kind.cold(prompt, TOKENS) for name, prompt in prompts.items()}
    engine.close()


@pytest.mark.parametrize("length", [1, pytest.param(256, marks=SLOW), 257])
def test_b016_the_same_prompt_again_gives_the_same_answer(
    kind: Kind, engine: InProcessEngine, length: int
) -> None:
    prompt = prompt_of(length)
    expected = kind.cold(prompt, 4)
    for name in ("once", "twice", "thrice"):
        assert engine.run(request(name, prompt, max_tokens=4, scope=SCOPE))[name] == expected
    together = [request(f"copy {n}", prompt, max_tokens=4, scope=SCOPE) for n in range(4)]
    assert set(map(tuple, engine.run(*together).values())) == {tuple(expected)}
    reused = [engine.outcomes[name].parked for name in ("twice", "thrice", "copy 0")]
    # One token is always computed; and what went on and cannot go back is computed anew.
    assert reused == [length - 1 if length > 1 and kind.goes_back else 0] * 3


@pytest.mark.parametrize("length", [257, pytest.param(300, marks=SLOW)])
def test_b016_a_stored_prompt_again_leaves_one_token_to_compute(
    kind: Kind, engine: InProcessEngine, length: int
) -> None:
    prompt = prompt_of(length)
    engine.run(request("first", prompt[:3], max_tokens=1))  # tells the layers their shapes
    shelf = Shelf(engine.cohort)
    one = request("cold", prompt, max_tokens=4)
    one.saving = shelf.saving(boundary=length)
    assert engine.run(one)["cold"] == kind.cold(prompt, 4)
    shelf.saved += engine.outcomes["cold"].saved
    for name, asked, stored in (
        ("again", prompt, length - 1),
        ("longer", [*prompt, 5], length - 1),
        # Of which a state that is kept whole is a token too long.
        ("shorter", prompt[:-1], length - 2 if kind.layers <= {"full", "latent"} else 0),
    ):
        warm = request(name, asked, max_tokens=4)
        warm.restore = shelf.find(asked)
        began = engine.engine.counters.prompt_tokens
        assert engine.run(warm)[name] == kind.cold(asked, 4)
        restored = engine.outcomes[name].restored
        assert restored == (stored if kind.is_stored else 0)
        assert engine.engine.counters.prompt_tokens - began == len(asked) - restored
    assert shelf.lent == 0


def test_b019_reuse_ends_where_a_row_can_be_cut_back_to(kind: Kind) -> None:
    engine = kind.engine(max_rows=1)  # so that only the last turn's row is there
    first = prompt_of(30)
    answer = kind.cold(first, TOKENS)
    longer = [*first, *answer, *prompt_of(5, 8)]
    edited = [*first[:20], first[20] ^ 1, *first[21:]]
    turns = [  # and how much of it the row holds that the turn before has left
        ("begin", first, 0),
        ("append", longer, len(first) + TOKENS - 1),
        ("edit", edited, 20),
        ("again", first, 20),
        ("shorten", first[:18], 17),
    ]
    held = 0
    for name, prompt, shared in turns:
        one = request(name, prompt, max_tokens=TOKENS, scope=SCOPE)
        assert engine.run(one)[name] == kind.cold(prompt, TOKENS)
        parked = engine.outcomes[name].parked
        back = held - shared
        held = len(prompt) + TOKENS - 1
        if kind.goes_back_anywhere or back == 0:
            assert parked == shared, name
        elif kind.goes_back:
            assert parked in ({shared} if back <= UNDO else {0, shared}), name
        else:
            assert parked == 0, name
    engine.close()


def test_b019_what_cannot_be_cut_back_starts_from_the_deepest_place_that_is_stored(
    kind: Kind, engine: InProcessEngine
) -> None:
    prompt = prompt_of(360)
    engine.run(request("first", prompt[:3], max_tokens=1))
    shelf = Shelf(engine.cohort)
    one = request("cold", prompt, max_tokens=TOKENS, scope=SCOPE)
    one.saving = shelf.saving(boundary=270)
    engine.run(one)
    shelf.saved += engine.outcomes["cold"].saved
    edited = [*prompt[:290], *prompt_of(40, 9)]
    again = request("edited", edited, max_tokens=TOKENS, scope=SCOPE)
    again.restore = shelf.find(edited)
    began = engine.engine.counters.prompt_tokens
    assert engine.run(again)["edited"] == kind.cold(edited, TOKENS)
    outcome = engine.outcomes["edited"]
    # The row is 81 tokens further on: too far for a window, too far for a recurrence.
    expected = (290, 0) if kind.goes_back_anywhere else (0, 270 if kind.is_stored else 0)
    assert (outcome.parked, outcome.restored) == expected
    computed = engine.engine.counters.prompt_tokens - began
    assert computed == len(edited) - outcome.parked - outcome.restored


def when_prefilled(
    engine: InProcessEngine, name: str, chunks: int, act: Callable[[], None]
) -> None:
    """Do something after so many chunks of a prompt."""

    def look() -> None:
        if len(engine.outcomes[name].progress) == chunks:
            act()
        else:
            engine.at_step[engine.step + 1] = look

    engine.outcomes[name] = Outcome()
    engine.at_step[engine.step + 1] = look


@pytest.mark.parametrize("reused", [0, 24])
def test_b020_a_prefill_that_others_overtake_goes_on_where_it_was(kind: Kind, reused: int) -> None:
    if kind.rows_max == 1:
        return  # nobody overtakes there; the next test is of such kinds, too
    engine = kind.engine(chunk_tokens=8)
    prompt, other = prompt_of(40), prompt_of(30, 9)
    if reused:
        engine.run(request("before", prompt[:reused], scope=SCOPE, max_tokens=1))
    began = engine.engine.counters.prompt_tokens
    urgent = request("urgent", other, priority=Priority.SYSTEM, max_tokens=TOKENS)
    when_prefilled(engine, "paused", 2, lambda: engine.submit(urgent))
    engine.submit(request("paused", prompt, scope=SCOPE, wants_progress=True, max_tokens=TOKENS))
    engine.finished("paused")
    outcomes = engine.finished()
    assert outcomes["paused"].progress == [*range(reused + 8, 39, 8), 39]
    assert outcomes["paused"].tokens == kind.cold(prompt, TOKENS)
    assert outcomes["urgent"].tokens == kind.cold(other, TOKENS)
    assert engine.engine.counters.prompt_tokens - began == len(prompt) - reused + len(other)
    after = [*prompt, 5, 6]
    assert engine.run(request("after", after, scope=SCOPE))["after"] == kind.cold(after, 16)
    engine.close()


@pytest.mark.parametrize("restored", [pytest.param(False, marks=SLOW), True])
def test_b020_a_prefill_that_was_sent_back_is_stored_as_what_it_is(
    kind: Kind, restored: bool
) -> None:
    engine = kind.engine(chunk_tokens=64, max_rows=1)
    prompt, other = prompt_of(400), prompt_of(30, 9)
    engine.run(request("first", other[:3], max_tokens=1))
    shelf = Shelf(engine.cohort)
    bulk = request("sent back", prompt, wants_progress=True, max_tokens=4, priority=Priority.BULK)
    if restored and kind.is_stored:
        before = request("before", prompt[:270], max_tokens=1)
        before.saving = shelf.saving(boundary=260)
        engine.run(before)
        shelf.saved += engine.outcomes["before"].saved
        bulk.restore = shelf.find(prompt)
        assert bulk.restore is not None
    bulk.saving = shelf.saving(boundary=390)
    urgent = request("urgent", other, priority=Priority.SYSTEM, max_tokens=TOKENS)
    when_prefilled(engine, "sent back", 2, lambda: engine.submit(urgent))
    engine.submit(bulk)
    engine.finished("sent back")
    outcomes = engine.finished()
    shelf.saved += outcomes["sent back"].saved
    assert outcomes["sent back"].preempted == 1
    assert outcomes["sent back"].tokens == kind.cold(prompt, 4)
    assert outcomes["urgent"].tokens == kind.cold(other, TOKENS)
    for saved in shelf.saved:
        named = np.frombuffer(saved.token_ids_le, np.uint32).tolist()
        assert named == prompt[: saved.span.stop]
    whole = kind.layers <= {"full", "latent"}
    stops = {saved.span.stop for saved in shelf.saved} if whole else set(shelf.states)
    for stop in sorted(stops):
        asked = [*prompt[:stop], *prompt_of(6, 10)]
        warm = request(f"from {stop}", asked, max_tokens=4)
        warm.restore = shelf.find(asked)
        assert engine.run(warm)[warm.id] == kind.cold(asked, 4)
        assert engine.outcomes[warm.id].restored == stop
    assert bool(stops) == kind.is_stored
    engine.close()
