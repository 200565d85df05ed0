"""Spans and the links between them; they cost almost nothing without a tracer provider.

OpenTelemetry's own no-op span takes microseconds. So every hot path calls `tracing()` first:
without a tracer provider that is two dictionary lookups, and no span is made.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

_TRACE = "opentelemetry.trace"
_modules = sys.modules


def tracing() -> bool:
    """Tell whether this process has a tracer provider, so that spans are exported."""
    trace: Any = _modules.get(_TRACE)
    return trace is not None and trace._TRACER_PROVIDER is not None


@contextlib.contextmanager
def span(
    name: str,
    attributes: Mapping[str, Any] | None = None,
    links: Sequence[SpanContext] = (),
) -> Iterator[Span]:
    """Open a span around the block. Call it only when `tracing()`."""
    from opentelemetry import trace

    tracer = trace.get_tracer("harn")
    with tracer.start_as_current_span(
        name, attributes=attributes, links=[trace.Link(context) for context in links]
    ) as opened:
        yield opened


def instant_span(
    name: str,
    attributes: Mapping[str, Any] | None = None,
    links: Sequence[SpanContext] = (),
) -> SpanContext:
    """Record a span that begins and ends now, and return its context for links."""
    from opentelemetry import trace

    tracer = trace.get_tracer("harn")
    opened = tracer.start_span(
        name, attributes=attributes, links=[trace.Link(context) for context in links]
    )
    opened.end()
    return opened.get_span_context()


TRACEPARENT = "traceparent"
"""The W3C header with the trace and span ids, for another process."""

_WRITTEN = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def trace_headers() -> dict[str, str]:
    """Return the headers that let another process continue this trace; none without one.

    >>> trace_headers()
    {}
    """
    if not tracing():
        return {}
    from opentelemetry import trace

    written = traceparent_of(trace.get_current_span().get_span_context())
    return {} if written is None else {TRACEPARENT: written}


def traceparent_of(context: SpanContext) -> str | None:
    """Return the W3C header that names a span; None if its context is invalid."""
    from opentelemetry import trace

    if not context.is_valid:
        return None
    ids = f"{trace.format_trace_id(context.trace_id)}-{trace.format_span_id(context.span_id)}"
    return f"00-{ids}-{context.trace_flags:02x}"


def continue_from(origin: SpanContext) -> None:
    """Make *origin*, a span of another process, the current span of this contextvars context."""
    from opentelemetry import context, trace

    context.attach(trace.set_span_in_context(trace.NonRecordingSpan(origin)))


@contextlib.contextmanager
def span_after(
    name: str, headers: Mapping[str, Any], attributes: Mapping[str, Any] | None = None
) -> Iterator[Span | None]:
    """Open a span in the trace that *headers* name, linked to the span that they name.

    Headers come from a sender: an invalid or missing one begins a new trace. Without a tracer
    provider the block runs with None.

    >>> with span_after("job", {}) as opened:
    ...     print(opened)
    None
    """
    if not tracing():
        yield None
        return
    from opentelemetry import trace

    origin = come_from(headers)
    context, links = None, []
    if origin is not None:
        context = trace.set_span_in_context(trace.NonRecordingSpan(origin))
        links = [trace.Link(origin)]
    with trace.get_tracer("harn").start_as_current_span(
        name, context, kind=trace.SpanKind.CONSUMER, attributes=attributes, links=links
    ) as opened:
        yield opened


def note_exception(failure: Mapping[str, str | None]) -> None:
    """Record an exception on the current span, with OpenTelemetry's names.

    *failure* has the keys `error_type`, `error_message` and `traceback`, as records do.
    """
    if tracing():
        from opentelemetry import trace

        named = {
            "exception.type": failure["error_type"],
            "exception.message": failure["error_message"],
            "exception.stacktrace": failure["traceback"],
        }
        event = {name: value for name, value in named.items() if value is not None}
        trace.get_current_span().add_event("exception", event)


def fail_span(reason: str) -> None:
    """Set the status of the current span to error."""
    if tracing():
        from opentelemetry import trace

        trace.get_current_span().set_status(trace.Status(trace.StatusCode.ERROR, reason))


def come_from(headers: Mapping[str, Any]) -> SpanContext | None:
    """Return the span that *headers* name; None if there is none or it is invalid."""
    from opentelemetry import trace

    found = _WRITTEN.fullmatch(str(headers.get(TRACEPARENT, "")))
    if found is None:
        return None
    trace_id, span_id, flags = (int(part, 16) for part in found.groups())
    context = trace.SpanContext(trace_id, span_id, True, trace.TraceFlags(flags & 1))
    return context if context.is_valid else None


def current_ids() -> tuple[str | None, str | None]:
    """Return the current trace id and span id in hex, or a pair of None."""
    if not tracing():
        return None, None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None, None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
