"""W3C's traceparent is read strictly and passed on as it came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bramley.common import traces
from bramley.common.traces import TraceParent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{SPAN}-01"
PARENT = TraceParent(TRACE, SPAN, 1)


def test_a_parent_is_read_and_written() -> None:
    assert traces.parse(HEADER) == PARENT
    assert PARENT.header == HEADER
    assert PARENT.is_sampled
    unsampled = traces.parse(f"00-{TRACE}-{SPAN}-00")
    assert unsampled is not None
    assert not unsampled.is_sampled


def test_a_newer_version_is_read_as_far_as_it_is_known() -> None:
    assert traces.parse(f"01-{TRACE}-{SPAN}-01-more") == PARENT


@pytest.mark.parametrize(
    "header",
    [
        "",
        TRACE,
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
        f" {HEADER}",
    ],
)
def test_what_is_not_well_formed_is_no_trace(header: str) -> None:
    assert traces.parse(header) is None


@given(st.text())
def test_any_header_is_a_trace_or_none(header: str) -> None:
    parsed = traces.parse(header)
    assert parsed is None or traces.parse(parsed.header) is not None


def test_it_is_found_in_a_calls_metadata() -> None:
    assert traces.parent_in(None) is None
    assert traces.parent_in([("traceparent", HEADER), ("other", "x")]) == PARENT
    assert traces.parent_in([("traceparent", HEADER), ("traceparent", HEADER)]) is None
    stated = traces.parent_in(
        [("tracestate", "a=1"), ("traceparent", HEADER), ("tracestate", "b=2")]
    )
    assert stated == TraceParent(TRACE, SPAN, 1, "a=1,b=2")
    long = traces.parent_in([("traceparent", HEADER), ("tracestate", "x" * 513)])
    assert long == PARENT


@pytest.mark.parametrize("parent", [None, PARENT, TraceParent(TRACE, SPAN, 0, "a=1")])
def test_what_a_call_carries_comes_out_again(parent: TraceParent | None) -> None:
    carried = traces.metadata_of("r7-1", parent)
    assert traces.request_in(carried) == "r7-1"
    assert traces.parent_in(carried) == parent
    assert traces.request_in(()) == ""
