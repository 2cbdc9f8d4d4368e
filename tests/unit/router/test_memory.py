"""The ledger of the models' memory."""

import pytest

from bramley.common.ids import ModelName
from bramley.protos.v1 import worker_pb2
from bramley.router.memory import STATE_FLOOR, MemoryLedger, needed, taken
from bramley.router.policy import ModelPolicy

A, B = ModelName("a"), ModelName("b")


def test_what_is_reserved_is_held_until_it_is_released() -> None:
    ledger = MemoryLedger(budget=10, store=2)
    ledger.reserve(A, 3)
    ledger.reserve(B, 4)
    assert (ledger.most, ledger.free, ledger.held_by_all) == (8, 1, 7)
    ledger.release(A)
    assert (ledger.free, ledger.held(A), ledger.held(B)) == (4, 0, 4)


def test_more_than_reserved_is_held_once_it_is_measured_and_less_is_not_given_back() -> None:
    ledger = MemoryLedger(budget=10)
    ledger.reserve(A, 3)
    ledger.measure(A, 5)
    assert ledger.held(A) == 5
    ledger.measure(A, 1)
    assert ledger.held(A) == 3


def test_free_is_never_negative_and_what_is_not_loaded_is_not_measured() -> None:
    ledger = MemoryLedger(budget=10, store=2)
    ledger.reserve(A, 3)
    ledger.measure(A, 50)
    ledger.measure(B, 50)
    assert (ledger.free, ledger.held(B)) == (0, 0)


def test_without_a_budget_everything_fits() -> None:
    ledger = MemoryLedger()
    ledger.reserve(A, 1 << 50)
    assert ledger.free > 1 << 60


@pytest.mark.parametrize(
    ("policy", "weights", "workspace", "bytes_"),
    [
        (ModelPolicy(memory_bytes=7, weights_bytes=100), 50, 5, 7),
        (ModelPolicy(weights_bytes=100), 0, 0, 105 + STATE_FLOOR),
        (ModelPolicy(weights_bytes=100, state_bytes=10), 0, 0, 115),
        (ModelPolicy(weights_bytes=100, state_bytes=10), 50, 5, 65),
    ],
)
def test_a_need_goes_by_settings_then_by_what_was_measured_then_by_files(
    policy: ModelPolicy, weights: int, workspace: int, bytes_: int
) -> None:
    assert needed(policy, 1, weights, workspace) == bytes_
    assert needed(policy, 3, weights, workspace) == 3 * bytes_


def test_what_workers_take_is_the_larger_of_parts_and_whole() -> None:
    parts = worker_pb2.Load(
        memory=worker_pb2.Memory(weights=5, state=3, workspace=1), memory_bytes=7
    )
    whole = worker_pb2.Load(memory_bytes=4)
    assert taken([parts, whole]) == 13
