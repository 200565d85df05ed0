"""A durable call of a shared pool stays in its submit's trace, in whichever process it runs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace

import harn
from harn import Pool, PoolTask
from tests.pools.shared_processes import Process, gates, ran, until


@harn.durable(name="tests:shared_traced", rerun=True)
async def traced(name: str) -> str:
    ran.append(name)
    with trace.get_tracer("tests").start_as_current_span("inside"):
        if name in gates:
            await gates[name].wait()
    return name


async def submit_within(process: Process, pool: Pool, span: str, name: str) -> PoolTask:
    """Submit a call of `traced` in *process*, inside of a *span*."""

    async def submit() -> PoolTask:
        with trace.get_tracer("tests").start_as_current_span(span):
            return await pool.submit(traced, name)

    task: PoolTask = await process.inside(submit)
    return task


def named(spans: Any, name: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def ids(span: Any) -> tuple[int, int]:
    return span.context.trace_id, span.context.span_id


def linked(span: Any) -> tuple[int, int]:
    [link] = span.links
    return ids(link)


@contextlib.contextmanager
def without_tracer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(trace, "_TRACER_PROVIDER", None)
        yield


async def test_a_call_that_runs_in_another_process_links_back_to_its_submit(
    processes: list[Process], spans: Any
) -> None:
    first, second = processes
    submitter = await first.open(run_here=False)
    await second.open()

    task = await submit_within(first, submitter, "outside", "call")
    assert await task == "call"

    [outside], [inside] = named(spans, "outside"), named(spans, "inside")
    [submit], [dequeue] = named(spans, "pool.submit gpu"), named(spans, "pool.dequeue gpu")
    assert linked(dequeue) == ids(submit)
    assert dequeue.parent is None
    assert dequeue.attributes["harn.pool.task"] == task.id
    assert submit.context.trace_id == inside.context.trace_id == outside.context.trace_id
    assert (inside.parent.span_id, inside.parent.is_remote) == (submit.context.span_id, True)


async def test_a_call_that_is_queued_again_links_back_to_its_submit_each_time(
    processes: list[Process], spans: Any
) -> None:
    first, second = processes
    ours = await first.open()
    gates["again"] = asyncio.Event()
    task = await submit_within(first, ours, "outside", "again")
    await until(lambda: ran == ["again"])

    await second.open()
    await first.expire(second)
    await until(lambda: ran == ["again", "again"])
    gates["again"].set()
    await task.wait()

    [submit] = named(spans, "pool.submit gpu")
    dequeues = named(spans, "pool.dequeue gpu")
    assert len(dequeues) == 2
    for dequeue in dequeues:
        assert linked(dequeue) == ids(submit)


async def test_a_call_whose_record_names_no_trace_begins_its_own(
    processes: list[Process], spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = processes
    submitter = await first.open(run_here=False)
    with without_tracer(monkeypatch):
        task = await submitter.submit(traced, "call")

    await second.open()
    assert await task == "call"

    [dequeue], [inside] = named(spans, "pool.dequeue gpu"), named(spans, "inside")
    assert (dequeue.links, inside.parent) == ((), None)


async def test_a_process_without_a_tracer_runs_a_call_that_names_a_trace(
    processes: list[Process], spans: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = processes
    submitter = await first.open(run_here=False)
    task = await submitter.submit(traced, "call")

    with without_tracer(monkeypatch):
        await second.open()
        assert await task == "call"

    assert [span.name for span in spans.get_finished_spans()] == ["pool.submit gpu"]
