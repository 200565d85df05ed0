"""Telemetry of model calls: a span by the GenAI conventions, and token counters.

Neither has the text of a message: only counts, names and outcomes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from harn.context import Task
from harn.current import current_frame
from harn.llm.messages import ModelRequest, Usage
from harn.runtime import Runtime
from harn.telemetry.metrics import MOST_LABELS, OTHER, Metrics, Sample
from harn.telemetry.spans import span, tracing
from harn.unsettled_sources import InFlightLlmCall, UnsettledSources

if TYPE_CHECKING:
    from harn.llm.registry import Route


class ModelCounters:
    """How many calls, tokens and micro-dollars each route has used, in this runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.in_flight: set[_Seen] = set()
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._tokens: Counter[tuple[str, str, str]] = Counter()
        self._cost: Counter[tuple[str, str]] = Counter()
        runtime.service(Metrics).add(self._samples)
        runtime.service(UnsettledSources).add("in_flight_llm_calls", self._in_flight)

    def count(self, route: Route, outcome: str, usage: Usage) -> None:
        """Add one call."""
        provider, model = self._bounded(route.provider, route.model)
        self._calls[provider, model, outcome] += 1
        self._tokens[provider, model, "input"] += usage.input_tokens
        self._tokens[provider, model, "output"] += usage.output_tokens
        if cost := route.cost_usd(usage):
            self._cost[provider, model] += round(cost * 1_000_000)

    def _bounded(self, provider: str, model: str) -> tuple[str, str]:
        known = {(each[0], each[1]) for each in self._calls}
        if (provider, model) in known or len(known) < MOST_LABELS:
            return provider, model
        return OTHER, OTHER

    def _in_flight(self) -> list[InFlightLlmCall]:
        now = self._runtime.clock.now_ms()
        calls = sorted(self.in_flight, key=lambda seen: seen.started_at_ms)
        return [seen.as_in_flight(now) for seen in calls]

    def _samples(self) -> Iterable[Sample]:
        for labels, number in self._calls.items():
            yield Sample("harn_llm_calls_total", number, labels)
        for labels, number in self._tokens.items():
            yield Sample("harn_llm_tokens_total", number, labels)
        for pair, micros in self._cost.items():
            yield Sample("harn_llm_cost_usd_total", micros / 1_000_000, pair)


class _Seen:
    """The usage of a call, set before its block ends."""

    def __init__(self, opened: Any, route: Route, task: Task) -> None:
        self._span = opened
        self._route = route
        self._task = task
        self.started_at_ms = task.runtime.clock.now_ms()
        self.usage = Usage()

    def as_in_flight(self, now_ms: int) -> InFlightLlmCall:
        """Describe the call as `unsettled_state` lists it."""
        return InFlightLlmCall(
            provider=self._route.provider,
            model=self._route.model,
            task_id=self._task.id,
            tenant_id=self._task.ambient.tenant_id,
            started_at_ms=self.started_at_ms,
            age_ms=max(0, now_ms - self.started_at_ms),
        )

    def ended(self, usage: Usage, model: str, finish: str | None) -> None:
        """Record the tokens used, the model that answered and why it stopped."""
        self.usage = usage
        if self._span is not None:
            self._span.set_attribute("gen_ai.usage.input_tokens", usage.input_tokens)
            self._span.set_attribute("gen_ai.usage.output_tokens", usage.output_tokens)
            self._span.set_attribute("gen_ai.response.model", model)
            if finish:
                self._span.set_attribute("gen_ai.response.finish_reasons", [finish])


@contextlib.contextmanager
def observed(route: Route, request: ModelRequest) -> Iterator[_Seen]:
    """Count the call in the block, with a span around it if there is a tracer provider."""
    task = current_frame().task
    counters = task.runtime.service(ModelCounters)
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(span(*_described(route, request))) if tracing() else None
        seen = _Seen(opened, route, task)
        counters.in_flight.add(seen)
        try:
            yield seen
        except BaseException as error:
            counters.count(route, type(error).__name__, seen.usage)
            raise
        else:
            counters.count(route, "ok", seen.usage)
        finally:
            counters.in_flight.discard(seen)


def _described(route: Route, request: ModelRequest) -> tuple[str, dict[str, Any]]:
    ambient = current_frame().task.ambient
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": route.provider,
        "gen_ai.request.model": request.model,
        "gen_ai.request.max_tokens": request.max_tokens,
        "harn.submitted_by": ambient.submitted_by,
    }
    if ambient.tenant_id:
        attributes["harn.tenant_id"] = ambient.tenant_id
    return f"chat {request.model}", attributes
