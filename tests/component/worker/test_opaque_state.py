"""A model's own caches as a row: what they take is counted, bounded, parked and given back."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache

from bramley.common.errors import DeviceOom, EngineFault
from bramley.worker.cache.contract import CannotExport, CannotRollback
from bramley.worker.cache.opaque import OpaqueState
from bramley.worker.cache.table import RowTable
from bramley.worker.models.contract import Lane, LanguageModel
from bramley.worker.models.mlx_lm import own_caches
from support.engines import InProcessEngine, request
from support.kinds import Kind
from support.rows import contract

SCOPE = b"scope"
COLUMNS = 256  # by which the caches of full attention grow
TOKEN_BYTES = 2 * 2 * 16 * 4  # of a layer: keys and values, heads, size, float32


@pytest.fixture(scope="module")
def kind() -> Kind:
    return Kind.make("own caches")


@pytest.fixture
def engine(kind: Kind) -> Iterator[InProcessEngine]:
    made = kind.engine()
    yield made
    made.close()


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


def made() -> tuple[RowTable, OpaqueState]:
    table = RowTable()
    state = OpaqueState(table, lambda: [KVCache(), CacheList(ArraysCache(2), KVCache())])
    table.join()
    return table, state


def forward(table: RowTable, state: OpaqueState, columns: int) -> None:
    table.begin(range(1), columns)
    state.prepare()
    keys = mx.ones((1, 2, columns, 16))
    for cache in (state.caches[0], cast("Any", state.caches[1])[1]):
        cast("Any", cache).update_and_fetch(keys, keys)
    cast("Any", state.caches[1])[0][0] = mx.zeros((1, 3))
    mx.eval(state.arrays())


def test_its_bytes_are_those_of_every_array_however_deep() -> None:
    table, state = made()
    assert state.nbytes == 0
    forward(table, state, 5)
    table.commit()
    assert state.nbytes == 2 * COLUMNS * TOKEN_BYTES + 3 * 4
    assert state.bytes_after(1, 10**6) == state.row_bytes(10**6) == state.nbytes
    state.reset()
    assert state.nbytes == 0


def test_it_goes_nowhere_but_on_or_to_the_start() -> None:
    table, state = made()
    assert contract(state).kind == "opaque"
    forward(table, state, 5)
    table.commit()
    assert state.can_rollback(0, 0)
    assert not state.can_rollback(0, 1)
    with pytest.raises(CannotRollback):
        state.rollback(0, 1)
    assert state.export_bytes(5) == 0
    with pytest.raises(CannotExport):
        state.export_row(0, 0, 5, np.zeros(0, np.uint8))
    state.clear_row(0)
    table.clear(0)
    forward(table, state, 3)
    assert cast("Any", state.caches[0]).offset == 3


def test_after_a_forward_that_failed_it_takes_no_other_until_it_begins_anew() -> None:
    table, state = made()
    forward(table, state, 5)  # and nobody commits
    with pytest.raises(RuntimeError, match="unknown after a failed step"):
        forward(table, state, 1)
    state.clear_row(0)
    forward(table, state, 1)


def test_a_failed_step_ends_its_request_and_the_next_is_right(kind: Kind) -> None:
    calls = 0

    class Fails:
        def __call__(self, inputs: mx.array, /, *, cache: Sequence[Any]) -> mx.array:
            nonlocal calls
            calls += 1
            if calls == 6:
                raise RuntimeError("planted")
            return cast("LanguageModel", kind.model)(inputs, cache=cache)

    engine = InProcessEngine(
        Fails(), lane=Lane.OWN, own_caches=functools.partial(own_caches, kind.model)
    )
    engine.submit(request("fails", tokens(1, 20)))
    assert isinstance(engine.finished()["fails"].error, EngineFault)
    assert engine.run(request("next", tokens(2, 20)))["next"] == kind.cold(tokens(2, 20), 16)
    engine.close()


def test_a_turn_that_goes_on_takes_the_parked_row_and_no_other_does(
    kind: Kind, engine: InProcessEngine
) -> None:
    first = tokens(1, 40)
    said = engine.run(request("first", first, scope=SCOPE))["first"]
    assert engine.engine.counters.parked == 1
    turn = [*first, *said, 5, 6]
    assert engine.run(request("turn", turn, scope=SCOPE))["turn"] == kind.cold(turn, 16)
    assert engine.outcomes["turn"].parked == len(first) + len(said) - 1
    for name, prompt, scope in (("again", turn, SCOPE), ("other", [*turn, 7], b"other scope")):
        answer = engine.run(request(name, prompt, scope=scope))[name]
        assert answer == kind.cold(prompt, 16)
        assert engine.outcomes[name].parked == 0


def test_no_more_is_parked_than_may_be(kind: Kind) -> None:
    engine = kind.engine(parked_bytes=1)
    engine.run(request("first", tokens(1, 40), scope=SCOPE))
    engine.idle()
    assert engine.engine.counters.parked == 0
    assert engine.cohort.nbytes == 0  # its room is not kept
    engine.close()


def test_state_bytes_bound_what_they_take(kind: Kind) -> None:
    small, large = tokens(1, 100), tokens(2, 900)
    probe = kind.engine()
    probe.run(request("small", small, scope=SCOPE))
    probe.idle()
    taken = probe.cohort.nbytes
    assert probe.engine.counters.state_bytes == taken > 0
    probe.close()

    engine = kind.engine(state_bytes=taken * 8 // 7 + 8)  # an eighth is a chunk's attention
    answer = engine.run(request("small", small, scope=SCOPE))["small"]
    assert answer == kind.cold(small, 16)
    assert engine.engine.counters.parked == 1
    engine.submit(request("large", large))
    error = engine.finished()["large"].error
    assert isinstance(error, DeviceOom)
    assert "than the" in error.message
    engine.idle()
    assert engine.engine.counters.parked == 0  # it went first
    assert engine.cohort.nbytes == 0
    assert engine.run(request("after", small))["after"] == answer
    engine.close()
