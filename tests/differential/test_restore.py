"""A row restored from saved parts goes on as the row that was computed: same tokens, less work."""

from collections.abc import Iterator

import numpy as np
import pytest

from bramley.worker.models.contract import LanguageModel
from bramley.worker.request import Request
from support.engines import InProcessEngine, request
from support.shelf import Shelf
from support.tiny_models import build

PROMPT = [int(token) for token in np.random.default_rng(11).integers(0, 256, 700)]
TOKENS = 12


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return build("full", seed=5)


@pytest.fixture
def engine(model: LanguageModel) -> Iterator[InProcessEngine]:
    made = InProcessEngine(model, chunk_tokens=256)
    made.run(request("first", [1, 2, 3], max_tokens=1))  # tells the layers their shapes
    yield made
    made.close()


@pytest.fixture
def cold(engine: InProcessEngine) -> list[int]:
    return engine.run(request("cold", PROMPT, max_tokens=TOKENS))["cold"]


@pytest.fixture
def shelf(engine: InProcessEngine, cold: list[int]) -> Shelf:
    """What a run of the prompt saves: its prompt first, then all of it."""
    shelf = Shelf(engine.cohort)
    saver = request("saver", PROMPT, max_tokens=TOKENS)
    saver.saving = shelf.saving(boundary=len(PROMPT))
    assert engine.run(saver)["saver"] == cold
    shelf.saved = engine.outcomes["saver"].saved
    return shelf


def restored(shelf: Shelf, name: str, prompt: list[int], tokens: int) -> Request:
    made = request(name, prompt, max_tokens=TOKENS)
    made.restore = shelf.lend(tokens)
    return made


def test_the_prompt_is_saved_in_blocks_and_a_tail_and_then_what_was_generated(
    shelf: Shelf,
) -> None:
    kinds = [(saved.span.kind, saved.span.first, saved.span.parts) for saved in shelf.saved]
    # The 12 tokens of the answer are too few to be worth a save of their own.
    assert kinds == [("extent", 0, (256, 256)), ("tail", 512, (187,))]
    named = shelf.saved[-1].token_ids_le
    assert named == np.array(PROMPT[: len(named) // 4], np.uint32).tobytes()


@pytest.mark.parametrize("tokens", [1, 100, 256, 300, 512, 513, 699])
def test_b016_a_restored_prefix_of_any_length_goes_on_as_the_cold_row(
    engine: InProcessEngine, cold: list[int], shelf: Shelf, tokens: int
) -> None:
    before = engine.engine.counters.prompt_tokens
    assert engine.run(restored(shelf, "warm", PROMPT, tokens))["warm"] == cold
    assert engine.engine.counters.prompt_tokens - before == len(PROMPT) - tokens
    assert engine.outcomes["warm"].restored == tokens
    assert shelf.lent == 0


def test_a_prefix_that_was_taken_back_during_the_copy_is_computed_instead(
    engine: InProcessEngine, cold: list[int], shelf: Shelf
) -> None:
    shelf.is_held = False
    before = engine.engine.counters.prompt_tokens
    assert engine.run(restored(shelf, "late", PROMPT, 699))["late"] == cold
    assert engine.engine.counters.prompt_tokens - before == len(PROMPT)


def test_restored_rows_run_beside_others(
    engine: InProcessEngine, cold: list[int], shelf: Shelf
) -> None:
    other = [9, 8, 7, 6]
    alone = engine.run(request("alone", other, max_tokens=40))["alone"]
    together = engine.run(
        request("beside", other, max_tokens=40),
        restored(shelf, "whole", PROMPT, 699),
        restored(shelf, "part", PROMPT, 512),
        request("cold again", PROMPT, max_tokens=TOKENS),
    )
    assert together == {"beside": alone, "whole": cold, "part": cold, "cold again": cold}


def test_another_end_of_the_prompt_is_computed_after_the_shared_part(
    engine: InProcessEngine, shelf: Shelf
) -> None:
    other = [*PROMPT[:520], *reversed(PROMPT[:90])]
    expected = engine.run(request("other", other, max_tokens=TOKENS))["other"]
    assert engine.run(restored(shelf, "shared", other, 520))["shared"] == expected


def test_a_saved_answer_is_a_prefix_of_the_next_turn(
    engine: InProcessEngine, cold: list[int]
) -> None:
    shelf = Shelf(engine.cohort)
    turn = request("turn", PROMPT[:400], max_tokens=200)
    turn.saving = shelf.saving(boundary=400)
    answer = engine.run(turn)["turn"]
    shelf.saved = engine.outcomes["turn"].saved
    following = [*PROMPT[:400], *answer, *PROMPT[400:450]]
    expected = engine.run(request("expected", following, max_tokens=TOKENS))["expected"]
    computed = 400 + 200 - 1  # the last token's own state was never written
    assert engine.run(restored(shelf, "next", following, computed))["next"] == expected


def test_without_room_nothing_is_saved_and_the_answer_is_the_same(
    engine: InProcessEngine, cold: list[int]
) -> None:
    shelf = Shelf(engine.cohort, room_bytes=0)
    unlucky = request("unlucky", PROMPT, max_tokens=TOKENS)
    unlucky.saving = shelf.saving(boundary=len(PROMPT))
    assert engine.run(unlucky)["unlucky"] == cold
    assert engine.outcomes["unlucky"].saved == []


def test_a_request_cancelled_before_its_seat_gives_its_prefix_back(
    model: LanguageModel, shelf: Shelf
) -> None:
    engine = InProcessEngine(model, max_rows=1)
    engine.submit(request("runs", [1, 2, 3], max_tokens=3000))
    engine.until(lambda: engine.engine.counters.running == 1)
    engine.submit(restored(shelf, "waits", PROMPT, 699))
    assert shelf.lent == 1
    engine.engine.cancel("waits")
    engine.until(lambda: shelf.lent == 0)
    engine.engine.cancel("runs")
    engine.idle()
    engine.close()


def test_what_is_stored_already_is_not_saved_again(engine: InProcessEngine, shelf: Shelf) -> None:
    again = restored(shelf, "again", PROMPT, 699)
    again.saving = shelf.saving(boundary=len(PROMPT), stored=699)
    engine.run(again)
    assert engine.outcomes["again"].saved == []
