"""Records traces with OpenTelemetry: the only file that imports it, and only where it is wanted."""

import time
from collections.abc import Mapping
from importlib.metadata import version

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from bramley.common.traces import TraceParent
from bramley.router.tracing import Phase, Trace

NAME = "bramley.router"
_NS = 1_000_000_000
_NO_FAULT = ("OK", "CANCELLED")


def exporting(endpoint: str, sample: float) -> "Recording":
    """Make what sends traces to a collector, in batches, from a thread of its own."""
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=endpoint.startswith("http://"))
    return Recording(BatchSpanProcessor(exporter), sample)


class Recording:
    """Records requests.

    Args:
        processor: takes each span at its end.
        sample: share of requests that are recorded, of those that come without a trace.
    """

    def __init__(self, processor: SpanProcessor, sample: float) -> None:
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample)),
            resource=Resource({"service.name": NAME, "service.version": version("bramley")}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer(NAME, version("bramley"))

    def begin(self, parent: TraceParent | None) -> Trace:
        """Begin with a request."""
        context = trace.set_span_in_context(trace.INVALID_SPAN if parent is None else _span(parent))
        began_ns = time.time_ns()
        span = self._tracer.start_span(
            "Generate", context, kind=SpanKind.SERVER, start_time=began_ns
        )
        return _Recorded(self._tracer, span, began_ns)

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()


class _Recorded:
    def __init__(self, tracer: trace.Tracer, span: Span, began_ns: int) -> None:
        self._tracer = tracer
        self._span = span
        self._began_ns = began_ns

    @property
    def is_recorded(self) -> bool:
        return self._span.is_recording()

    @property
    def parent(self) -> TraceParent:
        context = self._span.get_span_context()
        return TraceParent(
            trace.format_trace_id(context.trace_id),
            trace.format_span_id(context.span_id),
            int(context.trace_flags),
            context.trace_state.to_header(),
        )

    def end(self, code: str, spent: list[Phase], facts: Mapping[str, str | int]) -> None:
        span = self._span
        within = trace.set_span_in_context(span)
        for phase in spent:
            part = self._tracer.start_span(phase.name, within, start_time=self._at(phase.begin_s))
            part.end(self._at(phase.end_s))
        span.set_attributes({"rpc.response.status_code": code, **facts})
        if code not in _NO_FAULT:
            span.set_status(Status(StatusCode.ERROR, code))
        span.end(self._at(spent[-1].end_s))

    def _at(self, seconds: float) -> int:
        return self._began_ns + int(seconds * _NS)


def _span(parent: TraceParent) -> Span:
    return NonRecordingSpan(
        SpanContext(
            trace_id=int(parent.trace_id, 16),
            span_id=int(parent.span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(parent.flags),
            trace_state=trace.TraceState.from_header([parent.state]),
        )
    )
