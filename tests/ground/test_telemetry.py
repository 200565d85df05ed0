from __future__ import annotations

import subprocess
import sys

import pytest

from harn import Runtime, runtime_context
from harn.telemetry import metrics
from harn.telemetry.metrics import Family, HistogramSample, Metrics, Sample
from harn.telemetry.spans import tracing


def test_nothing_of_opentelemetry_is_loaded_until_it_is_used() -> None:
    code = """
import sys, harn
harn.run(__import__("asyncio").sleep, 0)
async def main(): return harn.runtime_context().trace_id
assert harn.run(main) is None
print("opentelemetry.trace" in sys.modules, "prometheus_client" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False False"


def test_spans_nest_link_and_show_in_the_context_once_a_provider_is_set() -> None:
    code = """
import asyncio, harn
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from harn.telemetry.spans import instant_span, span, tracing

assert not tracing()
exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
assert tracing()

async def main():
    submitted = instant_span("pool.submit review", {"pool": "review"})
    with span("pool.dequeue review", links=[submitted]) as opened:
        context = harn.runtime_context()
        assert context.span_id == trace.format_span_id(opened.get_span_context().span_id)
        assert len(context.trace_id) == 32
harn.run(main)
submit, dequeue = exporter.get_finished_spans()
assert dequeue.links[0].context.span_id == submit.context.span_id
assert submit.attributes["pool"] == "review"
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.stdout.strip() == "ok", done.stderr


def test_without_a_provider_there_are_no_ids() -> None:
    assert not tracing()


@pytest.fixture
def families(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = [
        Family("harn_jobs_total", "counter", "Jobs.", ("queue",)),
        Family("harn_wait_seconds", "histogram", "Waits."),
    ]
    known = {**metrics.FAMILIES, **{family.name: family for family in extra}}
    monkeypatch.setattr(metrics, "FAMILIES", known)


async def test_sources_are_asked_at_each_scrape(families: None) -> None:
    counts = {"q": 1}
    async with Runtime() as runtime:
        found = runtime.service(Metrics)
        found.add(lambda: [Sample("harn_jobs_total", counts["q"], ('we"ird\nname',))])
        found.add(lambda: [HistogramSample("harn_wait_seconds", ((0.1, 2), (float("inf"), 3)), 4)])
        first = found.exposition()
        counts["q"] = 2
        second = found.exposition()

    assert 'harn_jobs_total{queue="we\\"ird\\nname"} 1.0' in first
    assert 'harn_jobs_total{queue="we\\"ird\\nname"} 2.0' in second
    assert 'harn_wait_seconds_bucket{le="+Inf"} 3.0' in first
    assert "harn_runtime_tasks 0.0" in first


async def test_a_broken_source_does_not_hide_the_others(
    families: None, caplog: pytest.LogCaptureFixture
) -> None:
    async with Runtime() as runtime:
        found = runtime.service(Metrics)

        def broken() -> list[Sample]:
            raise ZeroDivisionError

        found.add(broken)
        found.add(lambda: [Sample("harn_jobs_total", 5, ("q",))])

        assert 'harn_jobs_total{queue="q"} 5.0' in found.exposition()

    assert "a metrics source failed" in caplog.text


async def test_the_context_has_no_trace_by_default() -> None:
    assert runtime_context().trace_id is None
