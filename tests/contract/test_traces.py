"""A request's trace: passed on to its worker, in the log, and recorded with its phases."""

import json
import logging
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace.status import StatusCode

from bramley.common import logs, traces
from bramley.common.errors import SettingsError
from bramley.router.otel import Recording
from bramley.router.tracers import tracing
from bramley.router.tracing import Phase, TraceSettings, phases
from support.routing import Bench, ask, collect, read_until, routed, until
from support.script import Script

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACED = (("traceparent", f"00-{TRACE}-{SPAN}-01"), ("tracestate", "a=1"))


@asynccontextmanager
async def recorded(
    sample: float = 1.0, **settings: Any
) -> AsyncGenerator[tuple[Bench, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    async with routed(**settings) as bench:
        bench.router.server.tracing = Recording(SimpleSpanProcessor(exporter), sample)
        yield bench, exporter


def by_name(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def carried(bench: Bench) -> list[traces.TraceParent | None]:
    return [traces.parent_in(one) for one in bench.node.workers["fake"].carried]


async def test_without_a_collector_a_trace_is_passed_on_as_it_came() -> None:
    async with routed() as bench:
        await collect(bench.stub.Generate(ask(), metadata=TRACED))
        parent = traces.TraceParent(TRACE, SPAN, 1, "a=1")
        assert carried(bench) == [parent, parent]
        worker = bench.node.workers["fake"]
        requests = {traces.request_in(one) for one in worker.carried}
        assert requests == set(worker.generated)


@pytest.mark.parametrize("metadata", [(), (("traceparent", "00-zz"),)])
async def test_without_a_trace_none_is_made_up(metadata: Any) -> None:
    async with routed() as bench:
        await collect(bench.stub.Generate(ask(), metadata=metadata))
        assert carried(bench) == [None, None]


async def test_a_request_and_its_phases_are_spans_of_the_callers_trace() -> None:
    script = Script(tokens=4, interval_s=0.01, prefill_s=0.04)
    async with recorded(script=script) as (bench, exporter):
        await collect(bench.stub.Generate(ask(), metadata=TRACED))
        spans = by_name(exporter)
        assert spans.keys() == {"Generate", "queue", "prefill", "decode"}
        whole = spans["Generate"]
        assert f"{whole.context.trace_id:032x}" == TRACE
        assert whole.parent is not None
        assert f"{whole.parent.span_id:016x}" == SPAN
        parts = [spans[name] for name in ("queue", "prefill", "decode")]
        assert {part.parent.span_id for part in parts if part.parent} == {whole.context.span_id}
        edges = [whole.start_time, *[part.end_time for part in parts]]
        assert [part.start_time for part in parts] == edges[:-1]
        assert edges[-1] == whole.end_time
        assert spans["prefill"].end_time - spans["prefill"].start_time > 30e6
        told = dict(whole.attributes or {})
        assert told.pop("bramley.request_id") == bench.node.workers["fake"].generated[0]
        assert told == {
            "rpc.response.status_code": "OK",
            "bramley.priority": "default",
            "bramley.cached_tokens": 0,
            "gen_ai.request.model": "fake",
            "gen_ai.usage.input_tokens": 5,
            "gen_ai.usage.output_tokens": 4,
        }
        assert whole.status.status_code is StatusCode.UNSET
        # The worker is told of our span, not of the caller's.
        assert {one.span_id for one in carried(bench) if one} == {f"{whole.context.span_id:016x}"}


async def test_a_request_without_a_trace_begins_one() -> None:
    async with recorded() as (bench, exporter):
        await collect(bench.stub.Generate(ask()))
        whole = by_name(exporter)["Generate"]
        assert whole.parent is None
        assert {one.trace_id for one in carried(bench) if one} == {f"{whole.context.trace_id:032x}"}


async def test_who_traces_nothing_is_not_recorded_and_its_trace_goes_on() -> None:
    async with recorded(sample=0.0) as (bench, exporter):
        await collect(bench.stub.Generate(ask()))
        unsampled = (("traceparent", f"00-{TRACE}-{SPAN}-00"),)
        await collect(bench.stub.Generate(ask(), metadata=unsampled))
        assert exporter.get_finished_spans() == ()
        last = carried(bench)[-1]
        assert last is not None
        assert (last.trace_id, last.is_sampled) == (TRACE, False)
        await collect(bench.stub.Generate(ask(), metadata=TRACED))
        assert len(exporter.get_finished_spans()) == 4


async def test_a_fault_is_one_in_its_trace_and_a_cancel_is_none() -> None:
    async with recorded() as (bench, exporter):
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(bench.stub.Generate(ask(labels={"fake.oom": "started"})))
        spans = by_name(exporter)
        assert spans["Generate"].status.status_code is StatusCode.ERROR
        assert "decode" not in spans
        exporter.clear()
        call = bench.stub.Generate(ask(labels={"fake.stall": "delta"}))
        await read_until(call, "delta")
        call.cancel()
        await until(lambda: len(exporter.get_finished_spans()) == 4)
        assert by_name(exporter)["Generate"].status.status_code is StatusCode.UNSET


async def test_no_span_holds_what_was_said() -> None:
    async with recorded() as (bench, exporter):
        await collect(bench.stub.Generate(ask(text="a secret", fairness_key="whose")))
        written = "".join(span.to_json() for span in exporter.get_finished_spans())
        assert "secret" not in written
        assert "whose" not in written


@pytest.fixture
def lines() -> Iterator[list[dict[str, Any]]]:
    """Every line that this process logs, as an object."""
    seen: list[dict[str, Any]] = []
    form = logs.formatter("test", "json")

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(json.loads(form.format(record)))

    handler, root = Keeping(), logging.getLogger()
    root.addHandler(handler)
    yield seen
    root.removeHandler(handler)


async def test_the_lines_of_a_request_name_its_trace(lines: list[dict[str, Any]]) -> None:
    async with routed() as bench:
        with pytest.raises(grpc.aio.AioRpcError):
            await collect(bench.stub.Generate(ask(labels={"fake.die": "delta"}), metadata=TRACED))
        (line,) = [one for one in lines if one["message"] == "worker lost under a request"]
        assert line["trace_id"] == TRACE
        assert line["request_id"].startswith("r1-")


def test_phases_follow_each_other_without_a_gap() -> None:
    assert phases(0.0, 0.0, 2.0) == [Phase("queue", 0.0, 2.0)]
    assert phases(1.0, 0.0, 2.0) == [Phase("queue", 0.0, 1.0), Phase("prefill", 1.0, 2.0)]
    assert phases(1.0, 1.5, 2.0) == [
        Phase("queue", 0.0, 1.0),
        Phase("prefill", 1.0, 1.5),
        Phase("decode", 1.5, 2.0),
    ]


async def test_a_collector_that_is_not_there_holds_up_nothing() -> None:
    settings = TraceSettings(endpoint="http://127.0.0.1:9")
    async with routed(traces=settings) as bench:
        await collect(bench.stub.Generate(ask()))
        assert carried(bench)[-1] is not None


async def test_a_collector_takes_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("bramley.router.otel")
    monkeypatch.setitem(sys.modules, "bramley.router.otel", None)
    with pytest.raises(SettingsError, match=r"router\.traces\.endpoint: .*bramley\[otel\]"):
        async with tracing(TraceSettings(endpoint="http://127.0.0.1:9")):
            pass
