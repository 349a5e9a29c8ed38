"""Export spans to an OpenTelemetry collector. Its libraries are imported only if `tracing.endpoint` is set."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from quarry_mq.server.settings.sections import TracingSection
from quarry_mq.store.errors import Unavailable

if TYPE_CHECKING:
    from opentelemetry.trace import Span

TRACEPARENT: Final = "traceparent"
"""The W3C's header, whose value clients of RocketMQ also put into a message's `trace_context`."""

LIBRARIES: Final = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")

STOP_S: Final = 2.0
"""Seconds that a stop waits for spans that are not exported yet."""

Attribute = str | int


class TracingUnavailable(Unavailable):
    """The extra `tracing` is not installed."""


class CallSpan:
    """The span of one traced call, until it is ended."""

    def __init__(self, span: Span, link_to: Callable[[str], Any]) -> None:
        self._span = span
        self._link_to = link_to
        self._is_ended = False

    def set(self, **attributes: Attribute) -> None:
        """Set attributes. In their names an underscore stands for a dot, two for an underscore."""
        for name, value in attributes.items():
            self._span.set_attribute(_dotted(name), value)

    def link(self, traceparent: str) -> None:
        """Link the call to another trace. A text that names no trace is ignored."""
        context = self._link_to(traceparent)
        if context.is_valid:
            self._span.add_link(context)

    def fail(self, text: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR, text)

    def end(self) -> None:
        """End the span. Further calls have no effect."""
        if not self._is_ended:
            self._is_ended = True
            self._span.end()


class Tracing:
    """Begin spans, and export the sampled ones on a thread of the library."""

    def __init__(self, endpoint: str, sample_ratio: float, *, node_id: str) -> None:
        """The libraries must be installed, see `require_tracing`."""
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        own_version = version("quarry-mq")
        self._trace = trace
        self._propagator = TraceContextTextMapPropagator()
        names = {"service.name": "quarry", "service.instance.id": node_id, "service.version": own_version}
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create(names),
            shutdown_on_exit=False,
        )
        self._exporter = OTLPSpanExporter(endpoint=endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("quarry", own_version)

    def begin(self, name: str, traceparent: str | None) -> CallSpan | None:
        """Begin a span, as a part of the client's trace if it names one; None when the span is not sampled."""
        context = None if traceparent is None else self._propagator.extract({TRACEPARENT: traceparent})
        span = self._tracer.start_span(name, context=context, kind=self._trace.SpanKind.SERVER)
        return CallSpan(span, self._context_of) if span.is_recording() else None

    def stop(self) -> None:
        """Export the remaining spans, for `STOP_S` at most, and end. Blocks."""
        ending = Thread(target=self._provider.shutdown, name="tracing", daemon=True)
        ending.start()
        ending.join(STOP_S)
        if ending.is_alive():  # an unreachable collector would be tried again for longer than a stop may take
            self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _context_of(self, traceparent: str) -> Any:
        context = self._propagator.extract({TRACEPARENT: traceparent})
        return self._trace.get_current_span(context).get_span_context()


def require_tracing(settings: TracingSection) -> None:
    """Raise TracingUnavailable if traces are configured and their libraries are not installed."""
    if settings.endpoint is not None and not all(_is_installed(each) for each in LIBRARIES):
        raise TracingUnavailable(
            "tracing.endpoint is set, but the extra `tracing` is not installed: pip install 'quarry-mq[tracing]'"
        )


def make_tracing(settings: TracingSection, *, node_id: str) -> Tracing | None:
    """Return the tracing that the settings ask for; None if they ask for none. Raises TracingUnavailable."""
    require_tracing(settings)
    if settings.endpoint is None:
        return None
    return Tracing(settings.endpoint, settings.sample_ratio, node_id=node_id)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # even its package is missing
        return False


def _dotted(name: str) -> str:
    return name.replace("__", "\0").replace("_", ".").replace("\0", "_")
