"""Rows that the store refuses: answers do not change, and all is stored once it can be."""

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from bramley.worker.cache.saved import Saving
from bramley.worker.engine import saver
from bramley.worker.engine.outputs import Saved
from bramley.worker.models.contract import LanguageModel, LayerCache
from bramley.worker.owed import HELD_BACK, Outcome
from bramley.worker.request import Priority, Request
from support.engines import FULL, InProcessEngine, oracle, request
from support.shelf import Room, Shelf
from support.tiny_models import build

SCOPE = b"scope"
LAYERS = {"full": (FULL, FULL), "sliding": (LayerCache(kind="rotating", window=8), FULL)}
QUEUE_FULL = Outcome("queue_full", after_s=0.05)
PATIENCE_S = 20.0

Answer = Callable[[Saved], Outcome]


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


def stored(_: Saved) -> Outcome:
    return Outcome()


class Store:
    """A store that answers as it is told, at once, and keeps what it takes on a shelf."""

    def __init__(self, engine: InProcessEngine) -> None:
        engine.run(request("warm", [1, 2, 3], max_tokens=1))
        self.shelf = Shelf(engine.cohort)
        self.answer: Answer = stored
        self.asked: list[Saved] = []
        self.has_room = True
        self._engine = engine
        engine.on_saved = self._take

    def saving(self, boundary: int, stored: int = 0) -> Saving:
        made = self.shelf.saving(boundary, stored)
        stage = made.stage
        made.stage = lambda size: stage(size) if self.has_room else None
        return made

    def refuse(self, times: int, outcome: Outcome = QUEUE_FULL) -> None:
        """Refuse so many objects, and take those that follow."""
        left = iter(range(times))
        self.answer = lambda _: outcome if next(left, None) is not None else Outcome()

    def find(self, prompt: list[int]) -> int:
        restore = self.shelf.find([*prompt, 0])
        return restore.tokens if restore is not None else 0

    def _take(self, saved: Saved) -> None:
        account = saved.saving.account
        if saved.handed.attempt <= account.void:
            self._engine.engine.settle(saved, Outcome(HELD_BACK))
            return
        self.asked.append(saved)
        outcome = self.answer(saved)
        if outcome.reason:
            account.void = saved.handed.attempt
        else:
            self.shelf.saved.append(saved)
        self._engine.engine.settle(saved, outcome)


class Bench:
    """An engine with such a store."""

    def __init__(self, kind: str, max_rows: int = 8) -> None:
        self.layers = LAYERS[kind]
        self.model: LanguageModel = build("full" if kind == "full" else "sliding", seed=5)
        self.engine = InProcessEngine(
            self.model, layers=self.layers, max_rows=max_rows, chunk_tokens=512
        )
        self.store = Store(self.engine)

    @property
    def owed(self) -> int:
        return self.engine.engine.counters.owed

    @property
    def lost(self) -> dict[str, int]:
        return dict(self.engine.engine.counters.lost)

    def ask(self, name: str, prompt: list[int], max_tokens: int = 40) -> Request:
        saving = self.store.saving(len(prompt))
        return request(name, prompt, max_tokens=max_tokens, scope=SCOPE, saving=saving)

    def answer(self, name: str, prompt: list[int], max_tokens: int = 40) -> list[int]:
        """Answer a prompt, and check it: all that its row then holds."""
        answer = self.engine.run(self.ask(name, prompt, max_tokens))[name]
        alone = request("x", prompt, max_tokens=max_tokens)
        assert answer == oracle(self.model, alone, layers=self.layers)
        return [*prompt, *answer][:-1]

    def until_paid(self) -> None:
        self.engine.until(lambda: self.owed == 0 and not self._flying)

    @property
    def _flying(self) -> int:
        return sum(saved.saving.account.flying for saved in self.engine.saved)

    def hurry(self, within_s: float = PATIENCE_S) -> float:
        """Have all saved that can be: how long it took."""
        done, began_s = threading.Event(), time.monotonic()
        self.engine.engine.save_owed(began_s + within_s, done.set)
        assert done.wait(2 * PATIENCE_S)
        return time.monotonic() - began_s


@pytest.fixture(params=sorted(LAYERS))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(request.param)
    yield made
    made.engine.close()


@pytest.fixture
def full() -> Iterator[Bench]:
    made = Bench("full")
    yield made
    made.engine.close()


def test_what_was_refused_is_stored_when_the_engine_is_idle(bench: Bench) -> None:
    bench.store.refuse(3)
    row = bench.answer("one", tokens(1, 600))
    bench.until_paid()
    assert bench.store.find(row) == len(row)
    assert bench.lost == {}


def test_every_row_is_paid_the_newest_first_and_one_object_at_a_time(full: Bench) -> None:
    full.store.answer = lambda _: Outcome("queue_full", after_s=60.0)
    rows = [full.answer(f"{n}", tokens(10 + n, 530)) for n in range(3)]
    assert full.owed == 3
    asked = len(full.store.asked)
    full.store.answer = stored
    full.hurry()
    assert full.owed == 0
    order = [saved.token_ids_le[:4] for saved in full.store.asked[asked:]]
    firsts = [np.array(row[:1], np.uint32).tobytes() for row in reversed(rows)]
    assert sorted(order, key=firsts.index) == order
    assert [full.store.find(row) for row in rows] == [len(row) for row in rows]


def test_a_store_that_asks_to_be_left_alone_costs_no_more_copies(full: Bench) -> None:
    full.store.answer = lambda _: Outcome("ram_full", after_s=60.0)
    full.answer("one", tokens(1, 300))
    asked = len(full.store.asked)
    assert asked == 1
    for number in range(3):
        full.answer(f"next {number}", tokens(20 + number, 300))
    assert len(full.store.asked) == asked
    assert full.owed == 4


def test_a_row_without_room_in_staging_is_saved_when_there_is(bench: Bench) -> None:
    bench.store.has_room = False
    row = bench.answer("one", tokens(1, 400))
    assert (bench.owed, bench.store.asked) == (1, [])
    bench.store.has_room = True
    bench.until_paid()
    assert bench.store.find(row) == len(row)


def test_what_is_owed_goes_with_its_row_and_is_counted(full: Bench) -> None:
    full.store.answer = lambda _: Outcome("disk_full", after_s=60.0)
    full.answer("one", tokens(1, 300))
    full.answer("two", tokens(2, 300))
    for number in range(7):
        full.engine.run(request(f"{number}", tokens(30 + number, 20), scope=SCOPE, max_tokens=2))
    assert full.owed == 1
    assert full.lost == {"disk_full": 1}


def test_the_next_turn_takes_the_debt_over(bench: Bench) -> None:
    bench.store.answer = lambda _: Outcome("queue_full", after_s=60.0)
    row = bench.answer("one", tokens(1, 600))
    bench.store.answer = stored
    turn = [*row, *tokens(3, 40)]
    bench.engine.run(bench.ask("next", turn))
    assert bench.engine.outcomes["next"].parked == len(row)
    bench.hurry()
    assert (bench.owed, bench.lost) == (0, {})
    assert bench.store.find(turn) >= len(turn) - 1


def test_what_is_owed_beyond_a_cut_is_lost_and_counted(full: Bench) -> None:
    full.store.answer = lambda _: Outcome("queue_full", after_s=60.0)
    row = full.answer("one", tokens(1, 600))
    edited = [*row[:300], *tokens(3, 40)]
    full.answer("next", edited)
    assert full.lost == {"queue_full": 1}
    full.store.answer = stored
    full.hurry()
    assert full.store.find(edited) >= len(edited) - 1


def test_what_comes_of_a_row_that_was_given_away_is_no_news_of_the_one_taken_instead() -> None:
    full = Bench("full", max_rows=1)
    prompt, take, on_its_way = tokens(1, 600), full.engine.on_saved, list[Saved]()
    full.engine.on_saved = on_its_way.append
    bulk = full.ask("bulk", prompt, max_tokens=400)
    bulk.priority = Priority.BULK
    full.engine.submit(bulk)
    full.engine.until(lambda: on_its_way != [])
    full.engine.on_saved = take
    full.engine.run(full.ask("urgent", [*prompt, *tokens(3, 40)]))
    full.engine.until(lambda: full.engine.outcomes["bulk"].parked == len(prompt))
    for saved in on_its_way:
        full.engine.engine.settle(saved, QUEUE_FULL)
    full.engine.finished("bulk")
    full.until_paid()
    assert full.engine.outcomes["bulk"].preempted == 1
    assert dict(full.engine.engine.counters.refused) == {}
    assert full.lost == {}
    full.engine.close()


def test_parents_that_have_gone_are_stored_again(bench: Bench) -> None:
    row = bench.answer("one", tokens(1, 600))
    bench.until_paid()
    bench.store.shelf.saved.clear()
    bench.store.refuse(1, Outcome("parent_missing", kept=0))
    row = bench.answer("next", [*row, *tokens(3, 300)])
    bench.until_paid()
    assert bench.store.find(row) == len(row)


def test_what_is_too_large_is_stored_in_smaller_pieces(full: Bench) -> None:
    def oversize(saved: Saved) -> Outcome:
        return Outcome("oversize") if len(saved.span.parts) > 1 else Outcome()

    full.store.answer = oversize
    row = full.answer("one", tokens(1, 600))
    full.until_paid()
    assert full.store.find(row) == len(row)


def test_a_flush_saves_between_steps_while_others_decode(bench: Bench) -> None:
    bench.store.answer = lambda _: Outcome("queue_full", after_s=60.0)
    row = bench.answer("one", tokens(1, 600))
    bench.engine.submit(request("runs", tokens(4, 20), max_tokens=2000))
    bench.engine.until(lambda: len(bench.engine.outcomes["runs"].tokens) > 2)
    bench.store.answer = stored
    bench.hurry()
    assert bench.engine.outcomes["runs"].finish is None
    assert bench.store.find(row) == len(row)
    bench.engine.engine.cancel("runs")
    bench.engine.idle()


def test_a_flush_waits_for_a_full_queue_but_not_for_a_full_disk_nor_beyond_its_time(
    full: Bench,
) -> None:
    full.store.answer = lambda _: Outcome("breaker_open", after_s=60.0)
    row = full.answer("one", tokens(1, 300))
    assert full.hurry() < PATIENCE_S / 2
    full.store.answer = lambda _: Outcome("queue_full", after_s=0.05)
    assert 0.3 <= full.hurry(0.3) < PATIENCE_S / 2
    assert full.owed == 1
    full.store.refuse(3)
    full.hurry()
    assert full.store.find(row) == len(row)


def test_a_request_waits_for_one_piece_of_a_copy_at_most(
    full: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saver, "PIECE_BYTES", 1)  # a block at a time
    full.store.has_room = False
    row = full.answer("one", tokens(1, 2000))
    pieces: list[bool] = []  # whether somebody waited when it began
    real = saver._copy_piece  # pyright: ignore[reportPrivateUsage]

    def copy_piece(*given: object) -> None:
        pieces.append("new" in full.engine.outcomes and full.engine.engine.counters.waiting > 0)
        if len(pieces) == 2:
            full.engine.submit(request("new", tokens(5, 20), max_tokens=4))
        real(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(saver, "_copy_piece", copy_piece)
    full.store.has_room = True
    full.until_paid()
    full.engine.finished("new")
    assert full.engine.outcomes["new"].tokens == oracle(
        full.model, request("x", tokens(5, 20), max_tokens=4)
    )
    assert not any(pieces)
    assert full.store.find(row) == len(row)
    assert len(pieces) >= 8


def test_a_copy_whose_row_goes_gives_its_room_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(saver, "PIECE_BYTES", 1)
    full = Bench("full", max_rows=1)
    full.store.has_room = False
    full.answer("one", tokens(1, 2000))
    real = saver._copy_piece  # pyright: ignore[reportPrivateUsage]
    pieces: list[Room] = []

    def copy_piece(*given: object) -> None:
        if len(full.store.shelf.rooms) == 1 and not pieces:
            pieces.append(full.store.shelf.rooms[0])
            full.engine.submit(request("new", tokens(5, 20), max_tokens=4))
        real(*given)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(saver, "_copy_piece", copy_piece)
    full.store.has_room = True
    full.engine.until(lambda: "new" in full.engine.outcomes)
    full.engine.finished("new")
    full.engine.idle()
    full.engine.until(lambda: pieces[0].is_released)
    assert full.lost == {"not_staged": 1}
    full.engine.close()
