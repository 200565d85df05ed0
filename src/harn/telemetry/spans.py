"""Spans and the links between them, at no cost while nobody listens.

OpenTelemetry's own no-op span takes microseconds. So every hot path asks `tracing()` first: until
a tracer provider has been set, that is two dictionary look-ups and nothing is built.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

_TRACE = "opentelemetry.trace"
_modules = sys.modules


def tracing() -> bool:
    """Tell whether this process has a tracer provider, so that building a span is worth it."""
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
    """Record a span that begins and ends here, and return what others can link to."""
    from opentelemetry import trace

    tracer = trace.get_tracer("harn")
    opened = tracer.start_span(
        name, attributes=attributes, links=[trace.Link(context) for context in links]
    )
    opened.end()
    return opened.get_span_context()


def current_ids() -> tuple[str | None, str | None]:
    """Return the trace id and span id in force here, in hex, or a pair of None."""
    if not tracing():
        return None, None
    from opentelemetry import trace

    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None, None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
