"""What goes into a message comes out of it."""

import struct
import sys

import pytest
from google.protobuf.duration_pb2 import Duration

from bramley.common.wire import is_span, pack_ids, short_name, to_duration, to_seconds, unpack_ids
from bramley.protos.v1 import router_pb2, types_pb2


@pytest.mark.parametrize("seconds", [0.0, 0.25, 1.5, 86_400.125])
def test_seconds_survive(seconds: float) -> None:
    duration = to_duration(seconds)
    assert to_seconds(duration) == seconds
    assert duration.ToNanoseconds() == int(seconds * 1e9)


def test_the_longest_time_that_a_message_can_hold_has_a_value() -> None:
    assert to_seconds(Duration(seconds=2**63 - 1)) == pytest.approx(2**63)


@pytest.mark.parametrize(
    ("seconds", "nanos", "expected"),
    [
        (0, 0, True),
        (1, 999_999_999, True),
        (-1, 0, False),
        (0, -1, False),
        (1, 1_000_000_000, False),
        (315_576_000_001, 0, False),
    ],
)
def test_a_span_is_a_well_formed_time_from_0_on(seconds: int, nanos: int, expected: bool) -> None:
    assert is_span(Duration(seconds=seconds, nanos=nanos)) is expected


def test_a_name_is_told_without_its_prefix() -> None:
    assert short_name(types_pb2.ModelState, types_pb2.MODEL_STATE_READY) == "READY"
    result = router_pb2.AbortResponse
    assert short_name(result.Result, result.RESULT_NOT_FOUND) == "NOT_FOUND"


def test_a_newer_peers_value_is_its_number() -> None:
    assert short_name(types_pb2.ModelState, 99) == "99"


@pytest.mark.parametrize("order", ["little", "big"])
def test_ids_are_little_endian_on_any_machine(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [0, 1, 2**32 - 1]
    native = struct.pack("<3I", *ids)
    monkeypatch.setattr(sys, "byteorder", order)
    # This machine's own words are little-endian: told that it is not, it must turn them round.
    swapped = struct.pack(">3I", *ids)
    assert pack_ids(ids) == (native if order == "little" else swapped)
    assert list(unpack_ids(pack_ids(ids))) == ids


def test_half_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        unpack_ids(b"\0\0\0\0\0")
