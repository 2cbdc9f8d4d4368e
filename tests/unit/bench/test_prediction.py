"""What rows, chunks and limits make of a prediction."""

import dataclasses
from typing import Any

import pytest

from bramley.bench.inventory.prediction import PROCESS_BYTES, Shape, largest, predict
from bramley.bench.inventory.record import LayerState
from bramley.worker.engine.scheduler import WORKSPACE_BYTES, Limits

FULL = LayerState(kind="full", layers=2, token_bytes=200, grows_to_tokens=None, fixed_bytes=0)
ROTATING = LayerState(
    kind="rotating", layers=1, token_bytes=100, grows_to_tokens=300, fixed_bytes=0
)
RECURRENT = LayerState(
    kind="recurrent", layers=3, token_bytes=0, grows_to_tokens=0, fixed_bytes=7000
)


def _as_it_is(columns: int) -> int:
    return columns


def _shape(*layers: LayerState, **more: Any) -> Shape:
    facts: dict[str, Any] = {
        "weights": 1000,
        "layers": layers,
        "context_max": 100_000,
        "heads": 4,
        "hidden": 64,
        "mlp": 128,
        "queries": 64,
        "vocabulary": 300,
        "number_bytes": 4,
        "width": _as_it_is,
        "warm_columns": 256,
        "limits": Limits(2048, 4),
    }
    return Shape(**{**facts, **more})


@pytest.mark.parametrize(
    ("rows", "tokens", "room"),
    [
        (1, 1, 256),
        (1, 257, 512),
        (2, 256, 2 * 256),
        (3, 256, 4 * 256),  # rows double
        (5, 300, 8 * 512),
        (1, 20_480, 20_736),  # 18,432 and an eighth, in steps of 256
    ],
)
def test_room_is_what_the_engine_makes(rows: int, tokens: int, room: int) -> None:
    found = predict(_shape(FULL), rows, tokens)
    assert found.state == room * FULL.token_bytes
    assert found.parts[0].exact_bytes == rows * tokens * FULL.token_bytes


def test_a_window_grows_no_further_and_a_recurrence_never() -> None:
    for tokens in (1000, 10_000):
        window, recurrence = predict(_shape(ROTATING, RECURRENT), 2, tokens).parts
        assert window.nbytes == 2 * 300 * 100
        assert recurrence.nbytes == 2 * 2 * 7000  # beside what the last step began with
        assert recurrence.exact_bytes == 2 * 7000


def test_what_a_worker_has_room_for_when_it_is_ready_counts() -> None:
    warm = _shape(FULL, warm_columns=2560, warm_rows=3)
    assert predict(warm, 1, 10).state == 4 * 2560 * FULL.token_bytes


def test_the_parts_are_the_total() -> None:
    found = predict(_shape(FULL, RECURRENT), 4, 1000)
    parts = sum(part.nbytes for part in found.parts)
    assert found.state == parts
    assert found.total == 1000 + parts + found.workspace + PROCESS_BYTES


def test_scores_of_a_chunk_stay_below_their_limit() -> None:
    few = predict(_shape(FULL), 1, 1000).workspace
    many = predict(_shape(FULL), 1, 100_000).workspace
    assert few < many < WORKSPACE_BYTES + (100 << 20)
    tight = dataclasses.replace(_shape(FULL), limits=Limits(2048, 4, 1 << 20))
    assert predict(tight, 1, 100_000).workspace < many / 10


def test_settings_that_limit_rows_limit_what_they_take() -> None:
    limits = Limits(2048, 4, 100_000)
    capped = predict(_shape(FULL, limits=limits, state_limit=900_000), 8, 1000)
    assert capped.state == 800_000
    assert capped.is_capped
    assert not predict(_shape(FULL, limits=limits, state_limit=900_000), 1, 1000).is_capped


@pytest.mark.parametrize("layer", [FULL, ROTATING, RECURRENT])
def test_more_tokens_and_more_rows_never_take_less(layer: LayerState) -> None:
    shape = _shape(layer)
    for rows in (1, 3, 8):
        totals = [predict(shape, rows, tokens).total for tokens in range(1, 6000, 97)]
        assert totals == sorted(totals)
    for tokens in (10, 3000):
        totals = [predict(shape, rows, tokens).total for rows in range(1, 40)]
        assert totals == sorted(totals)


@pytest.mark.parametrize("limit", [0, 1, 37, 99, 100, 1000])
def test_the_largest_number_that_fits_is_found(limit: int) -> None:
    assert largest(lambda number: number <= limit, 100) == min(limit, 100)
