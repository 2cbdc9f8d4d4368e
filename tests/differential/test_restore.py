"""A row restored from saved parts goes on as the row that was computed: same tokens, less work.

Of full attention any beginning can be restored; of a sliding window or of a recurrence
what was kept whole, at the places where it was.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from mlx import nn
from mlx_lm.models import llama

from bramley.worker.cache.saved import STATE_EVERY, Restore, StoredPart, StoredState
from bramley.worker.cache.snapshot import (
    copy_in,
    copy_out,
    fits,
    part_bytes,
    sliceable,
    span_bytes,
    spans,
    stateful,
)
from bramley.worker.engine.outputs import Saved
from bramley.worker.models.contract import LayerCache
from bramley.worker.models.mlx_lm import layer_caches
from bramley.worker.request import Request
from support.engines import InProcessEngine, request
from support.rows import Rows
from support.shelf import Shelf
from support.tiny_models import build, config_of, draw, greedy

RANDOM = [int(token) for token in np.random.default_rng(11).integers(0, 256, 3000)]
PROMPT = RANDOM[:700]
TOKENS = 12
HAVE_FULL = {"full", "mixture", "hybrid"}  # of the mixtures of layers
# Windows of 8 and of 512 tokens: of the prompt, one has dropped much and one keeps all.
KINDS = ("full", "window 8", "window 512", "hybrid")
full = pytest.mark.parametrize("bench", KINDS[:1], indirect=True)
windows = pytest.mark.parametrize(
    "bench",
    ["window 8", pytest.param("window 512", marks=pytest.mark.slow), "hybrid"],
    indirect=True,
)


@dataclass
class Bench:
    """A model, an engine that saves, and one that restores."""

    kind: str
    model: nn.Module
    layers: Sequence[LayerCache]
    saver: InProcessEngine
    restorer: InProcessEngine
    known: dict[tuple[int, ...], list[int]] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return self.kind == "full"

    def shelf(self, **options: int) -> Shelf:
        """A new one; that another one was full is forgotten."""
        forgotten = threading.Event()
        self.saver.engine.save_owed(time.monotonic(), forgotten.set)
        assert forgotten.wait(10.0)
        return Shelf(self.saver.cohort, **options)

    def cold(self, prompt: Sequence[int], tokens: int = TOKENS) -> list[int]:
        """What mlx-lm's own loop answers."""
        key = (*prompt, -tokens)
        if key not in self.known:
            self.known[key] = greedy(self.model, list(prompt), tokens)
        return self.known[key]

    def saved(
        self, shelf: Shelf, prompt: Sequence[int] = PROMPT, tokens: int = TOKENS, **saving: int
    ) -> Sequence[Saved]:
        """Answer a prompt and put what is saved on a shelf."""
        one = request("saver", prompt, max_tokens=tokens)
        one.saving = shelf.saving(**{"boundary": len(prompt), **saving})
        assert self.saver.run(one)["saver"] == self.cold(prompt, tokens)
        shelf.saved += self.saver.outcomes["saver"].saved
        return self.saver.outcomes["saver"].saved

    def restored(self, prompt: Sequence[int], restore: Restore | None) -> int:
        """Answer a prompt from what is lent, and check it: how many tokens were restored."""
        before = self.restorer.engine.counters.prompt_tokens
        assert self.restorer.run(_warm("warm", prompt, restore))["warm"] == self.cold(prompt)
        tokens = self.restorer.outcomes["warm"].restored
        assert self.restorer.engine.counters.prompt_tokens - before == len(prompt) - tokens
        return tokens


def _warm(name: str, prompt: Sequence[int], restore: Restore | None) -> Request:
    made = request(name, prompt, max_tokens=TOKENS)
    made.restore = restore
    return made


def _model(kind: str) -> nn.Module:
    if kind in ("full", "hybrid"):
        return build(kind, seed=5)
    config = {**config_of("sliding"), "sliding_window": int(kind.split()[1])}
    model = llama.Model(llama.ModelArgs.from_dict(config))
    draw(model, seed=5)
    return model


# A window that keeps all of the prompt is the same way through as one that drops some.
@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=[pytest.mark.slow] * (kind == "window 512")) for kind in KINDS
    ],
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    model = _model(request.param)
    layers = layer_caches(model)
    engines = [InProcessEngine(model, layers=layers, chunk_tokens=256) for _ in range(2)]
    for engine in engines:
        engine.run(_first())
    yield Bench(request.param, model, layers, engines[0], engines[1])
    for engine in engines:
        engine.close()


def _first() -> Request:
    return request("first", [1, 2, 3], max_tokens=1)  # tells the layers their shapes


def test_the_prompt_is_saved_in_blocks_and_a_tail_and_a_state_where_there_are_windows(
    bench: Bench,
) -> None:
    shelf = bench.shelf()
    saved = bench.saved(shelf)
    kinds = [(one.span.kind, one.span.first, one.span.parts) for one in saved]
    # The 12 tokens of the answer are too few to be worth a save of their own.
    expected = [("extent", 0, (256, 256)), ("tail", 512, (187,))]
    assert kinds == expected + ([] if bench.is_full else [("state", 512, (187,))])
    for one in saved:
        named = np.frombuffer(one.token_ids_le, np.uint32).tolist()
        assert named == PROMPT[: one.span.stop]


@pytest.mark.parametrize("boundary", [256, 300, 511, 512, 513, 699])
def test_b016_what_was_saved_at_any_boundary_goes_on_as_the_cold_row(
    bench: Bench, boundary: int
) -> None:
    shelf = bench.shelf()
    bench.saved(shelf, boundary=boundary)
    assert bench.is_full or shelf.states[0] == boundary
    assert bench.restored(PROMPT, shelf.lend(boundary)) == boundary
    assert shelf.lent == 0


@pytest.mark.parametrize("boundary", [256, 300, 512, 699])
def test_a_restored_row_is_saved_again_as_the_same_bytes(bench: Bench, boundary: int) -> None:
    shelf = bench.shelf()
    bench.saved(shelf, boundary=boundary)
    cohort = bench.restorer.executor.cohort()
    cohort.join(0)
    copy_in(cohort.layers, 0, shelf.lend(boundary))
    cohort.table.imported(0, boundary)
    first = [saved for saved in shelf.saved if saved.span.stop <= boundary]
    again = spans(cohort.layers, 0, boundary, extent_blocks=2)
    assert again == [saved.span for saved in first]
    for span, saved in zip(again, first, strict=True):
        copied = memoryview(bytearray(span_bytes(cohort.layers, span)))
        copy_out(cohort.layers, 0, span, copied)
        assert copied == saved.staged.view


@full
@pytest.mark.parametrize("tokens", [1, 100, 257, 699])
def test_of_full_attention_any_beginning_goes_on_as_the_cold_row(bench: Bench, tokens: int) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)
    assert bench.restored(PROMPT, shelf.lend(tokens)) == tokens


def test_a_repeated_an_edited_and_a_shortened_prompt_start_from_the_deepest_place_they_share(
    bench: Bench,
) -> None:
    shelf = bench.shelf()
    bench.saved(shelf, boundary=300)
    bench.saved(shelf, PROMPT, boundary=len(PROMPT))
    states = [] if bench.is_full else [300, 699, 699]
    assert shelf.states == states
    end = [bench.cold(PROMPT)[0] ^ 1, *PROMPT[:90]]
    for prompt, shared, kept in (
        (PROMPT, 699, 699),
        ([*PROMPT, *end], 700, 699),  # of full attention the answer was saved as well
        ([*PROMPT[:520], *end], 520, 300),
        ([*PROMPT[:300], *end], 300, 300),
        (PROMPT[:450], 449, 300),
        (PROMPT[:301], 300, 300),
        (PROMPT[:300], 299, 0),
        ([*PROMPT[:80], *end], 80, 0),
    ):
        expected = shared if bench.is_full else kept
        assert bench.restored(prompt, shelf.find(prompt)) == expected, (len(prompt), shared)


@windows
def test_a_long_prompt_s_state_is_kept_on_the_way(bench: Bench) -> None:
    shelf = bench.shelf()
    prompt = RANDOM[: STATE_EVERY + 400]
    bench.saved(shelf, prompt, boundary=len(prompt) - 20)
    assert shelf.states == [STATE_EVERY, len(prompt) - 20]
    edited = [*prompt[: STATE_EVERY + 100], *PROMPT[:50]]
    assert bench.restored(edited, shelf.find(edited)) == STATE_EVERY


def test_a_saved_answer_is_a_prefix_of_the_next_turn(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf, PROMPT[:400], tokens=200)
    following = [*PROMPT[:400], *bench.cold(PROMPT[:400], 200), *PROMPT[400:450]]
    computed = 400 + 200 - 1  # the last token's own state was never written
    assert bench.restored(following, shelf.find(following)) == computed


def test_what_is_stored_already_is_not_saved_again(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)
    again = _warm("again", PROMPT, shelf.find(PROMPT))
    again.saving = shelf.saving(boundary=len(PROMPT), stored=699)
    bench.restorer.run(again)
    assert bench.restorer.outcomes["again"].saved == []


def test_restored_rows_run_beside_others(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf, boundary=512)
    bench.saved(shelf)
    other = [9, 8, 7, 6]
    together = bench.restorer.run(
        request("beside", other, max_tokens=40),
        _warm("whole", PROMPT, shelf.lend(699)),
        _warm("part", PROMPT, shelf.lend(512)),
        request("cold", PROMPT, max_tokens=TOKENS),
    )
    cold = bench.cold(PROMPT)
    assert together == {
        "beside": bench.cold(other, 40),
        "whole": cold,
        "part": cold,
        "cold": cold,
    }


def test_a_row_is_restored_into_a_new_cohort(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)
    engine = InProcessEngine(bench.model, layers=bench.layers, waste_columns=64)
    engine.at_step[3] = lambda: engine.submit(_warm("warm", PROMPT, shelf.lend(699)))
    engine.submit(request("short", [1, 2], max_tokens=60))
    engine.until(lambda: "warm" in engine.outcomes)
    assert engine.finished("warm")["warm"].tokens == bench.cold(PROMPT)
    assert engine.outcomes["warm"].restored == 699
    assert len(engine.cohorts) == 2
    engine.close()


# What must not be used.


def _damaged(restore: Restore, damage: str) -> Restore:
    parts, state = restore.parts, restore.state
    if damage == "no state":
        restore.state = None
    elif damage == "another size of state" and state is not None:
        restore.state = StoredState(state.tokens, state.memory[:-4])
    elif damage == "a state of another place" and state is not None:
        restore.state = StoredState(state.tokens - 1, state.memory)
    elif damage == "no last part":
        restore.parts = parts[:-1]
    elif damage == "no first part":
        restore.parts = parts[1:]
    return restore


@windows
@pytest.mark.parametrize(
    "damage",
    [
        "no state",
        "another size of state",
        "a state of another place",
        "no last part",
        "no first part",
    ],
)
def test_layers_start_from_one_place_or_from_none(bench: Bench, damage: str) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)
    assert bench.restored(PROMPT, _damaged(shelf.lend(699), damage)) == 0
    assert shelf.lent == 0


def test_a_prefix_of_layers_that_are_all_of_another_shape_is_computed_instead(
    bench: Bench,
) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)
    engine = InProcessEngine(bench.model, layers=bench.layers)  # knows no shapes yet
    assert engine.run(_warm("warm", PROMPT, shelf.lend(699)))["warm"] == bench.cold(PROMPT)
    assert engine.outcomes["warm"].restored == 0
    engine.close()


def test_a_prefix_that_was_taken_back_during_the_copy_is_computed_instead(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)
    shelf.is_held = False
    assert bench.restored(PROMPT, shelf.lend(699)) == 0


def test_a_fault_while_a_prefix_is_copied_ends_its_request_alone(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)

    def fails() -> bool:
        raise RuntimeError("while it was copied")

    one = _warm("fails", PROMPT, shelf.lend(699))
    assert one.restore is not None
    one.restore.is_held = fails
    bench.restorer.submit(one)
    assert bench.restorer.finished("fails")["fails"].error is not None
    assert shelf.lent == 0
    assert bench.restored(PROMPT, shelf.lend(699)) == 699


def test_without_room_less_is_saved_and_the_answer_is_the_same(bench: Bench) -> None:
    shelf = bench.shelf()
    whole = bench.saved(shelf)
    needed = sum(len(room.view) for room in shelf.rooms)
    for room, expected in ((needed, len(whole)), (needed - 1, len(whole) - 1), (0, 0)):
        shelf = bench.shelf(room_bytes=room)
        saved = bench.saved(shelf)
        assert [one.span for one in saved] == [one.span for one in whole[:expected]]
    shelf = bench.shelf(room_bytes=needed - 1)
    bench.saved(shelf)
    assert bench.restored(PROMPT, shelf.find(PROMPT)) == (512 if bench.is_full else 0)


@windows
@pytest.mark.parametrize("boundary", [690, 420])
def test_a_state_is_kept_shortly_after_its_place_or_not_at_all(bench: Bench, boundary: int) -> None:
    shelf = bench.shelf()
    one = request("passes", PROMPT, max_tokens=TOKENS)
    one.saving = shelf.saving(boundary=boundary)
    one.saving.pauses = False
    bench.saver.run(one)
    shelf.saved += bench.saver.outcomes["passes"].saved
    kept = {"window 8": [690], "window 512": [690, 420], "hybrid": []}[bench.kind]
    found = boundary if boundary in kept else 0
    assert bench.restored(PROMPT, shelf.find(PROMPT)) == found
    handed = {id(saved.staged) for saved in shelf.saved}
    assert all(room.is_released for room in shelf.rooms if id(room) not in handed)


def test_b019_a_row_that_cannot_be_cut_back_gives_way_to_what_is_stored(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf, boundary=300)
    engine = bench.restorer
    engine.run(request("turn", PROMPT, max_tokens=TOKENS, scope=b"one"))
    edited = [*PROMPT[:520], *reversed(PROMPT[:90])]
    again = request("edited", edited, max_tokens=TOKENS, scope=b"one")
    again.restore = shelf.find(edited)
    before = engine.engine.counters.prompt_tokens
    assert engine.run(again)["edited"] == bench.cold(edited)
    outcome = engine.outcomes["edited"]
    # A row is taken where it saves as much as what is stored.
    found = {"full": (520, 0), "window 8": (0, 300), "window 512": (520, 0), "hybrid": (0, 300)}
    assert (outcome.parked, outcome.restored) == found[bench.kind]
    computed = engine.engine.counters.prompt_tokens - before
    assert computed == len(edited) - outcome.parked - outcome.restored


@pytest.mark.parametrize("step", range(1, 8))
def test_b018_what_a_cancelled_request_has_saved_is_named_by_the_tokens_of_its_state(
    bench: Bench, step: int
) -> None:
    shelf, prompt = bench.shelf(), RANDOM[:1000]
    engine = InProcessEngine(bench.model, layers=bench.layers, chunk_tokens=256)
    one = request("leaves", prompt, max_tokens=200)
    one.saving = shelf.saving(boundary=700)
    engine.at_step[step] = lambda: engine.engine.cancel("leaves")
    engine.submit(one)
    engine.idle()
    shelf.saved += engine.outcomes["leaves"].saved
    engine.close()
    for saved in shelf.saved:
        named = np.frombuffer(saved.token_ids_le, np.uint32).tolist()
        assert named == prompt[: saved.span.stop]
    assert bench.restored(prompt, shelf.find(prompt)) in {0, 700, 999}


def test_a_request_cancelled_before_its_seat_gives_its_prefix_back(bench: Bench) -> None:
    shelf = bench.shelf()
    bench.saved(shelf)
    engine = InProcessEngine(bench.model, layers=bench.layers, max_rows=1)
    engine.submit(request("runs", [1, 2, 3], max_tokens=3000))
    engine.until(lambda: engine.engine.counters.running == 1)
    engine.submit(_warm("waits", PROMPT, shelf.lend(699)))
    assert shelf.lent == 1
    engine.engine.cancel("waits")
    engine.until(lambda: shelf.lent == 0)
    engine.engine.cancel("runs")
    engine.idle()
    engine.close()


@pytest.mark.parametrize("kind", ["full", "rotating", "sinks", "recurrent", "mixture", "hybrid"])
@pytest.mark.parametrize("stop", [1, 5, 255, 256, 300, 512])
def test_any_mixture_of_layers_comes_back_bit_for_bit(kind: str, stop: int) -> None:
    tokens = RANDOM[:stop]
    batch, other = Rows.of(kind, [[7, 7], tokens]), Rows.of(kind, [[7] * 600])
    parts: list[StoredPart] = []
    state: StoredState | None = None
    for span in spans(batch.states, 0, stop, extent_blocks=1):
        memory = memoryview(bytearray(span_bytes(batch.states, span)))
        copy_out(batch.states, 1, span, memory)
        if span.kind == "state":
            size = part_bytes(stateful(batch.states), stop)
            state = StoredState(stop, memory[:size])
        else:
            size = part_bytes(sliceable(batch.states), span.parts[0])
            parts.append(StoredPart(span.first, span.parts[0], span.parts[0], memory[:size]))
    assert (bool(parts), state is not None) == (kind in HAVE_FULL, kind != "full")
    restore = Restore(tuple(parts), lambda: True, lambda: None, state)
    assert restore.tokens == stop
    assert fits(other.states, restore)
    other.join()
    copy_in(other.states, 1, restore)
    other.table.imported(1, stop)
    other.holds(1, tokens)
    other.holds(0, [7] * 600)
