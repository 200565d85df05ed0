"""What a pool writes about itself: receipts in the event log, spans in a trace."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import msgspec
import pytest

import harn
from harn import (
    Runtime,
    backpressure_queue,
    event_log_read,
    event_log_subscribe,
    pool_create,
    pool_wait,
)
from harn.testing import FakeClock

TOPIC = "lifecycle.pool.audit"


async def work(clock: FakeClock) -> None:
    await clock.advance("2s")


async def a_program(clock: FakeClock) -> bytes:
    async with harn.Runtime(clock=clock, seed=7, workflow_id="wf"):
        pool = await pool_create(
            name="review", max_concurrent=2, backpressure=backpressure_queue(2, "drop_oldest")
        )
        tasks = [
            await pool.submit(
                functools.partial(harn.sleep, 1), priority=n, key="k", idempotency_key=str(n)
            )
            for n in range(6)
        ]
        await clock.advance("10s")
        await pool_wait(tasks)
        return msgspec.json.encode(
            [
                [event.id, event.kind, event.payload, event.headers, event.occurred_at_ms]
                for event in await event_log_read(TOPIC)
            ]
        )


async def test_O1_the_same_program_leaves_the_same_bytes() -> None:
    first, second = await a_program(FakeClock()), await a_program(FakeClock())

    assert first == second
    kinds = [record[1] for record in msgspec.json.decode(first)]
    assert kinds.count("pool_submit") == 6
    assert kinds.count("pool_dequeue") == 4
    assert kinds.count("pool_drop") == 2


async def test_receipts_have_the_shapes_of_the_spec(runtime: Runtime, clock: FakeClock) -> None:
    pool = await pool_create(name="review", max_concurrent=1)
    first = await pool.submit(functools.partial(harn.sleep, 3))
    second = await pool.submit(functools.partial(harn.sleep, 0), priority=4, key="k")
    await clock.advance("3s")
    await pool_wait([first, second])

    events = await event_log_read(TOPIC)

    assert [(event.kind, event.headers) for event in events] == [
        ("pool_submit", {"schema": "harn.pool_submit.v1"}),
        ("pool_dequeue", {"schema": "harn.pool_dequeue.v1"}),
        ("pool_submit", {"schema": "harn.pool_submit.v1"}),
        ("pool_dequeue", {"schema": "harn.pool_dequeue.v1"}),
    ]
    assert events[2].payload == {
        "pool_id": pool.id,
        "pool": "review",
        "task_id": second.id,
        "submitted_at": "2026-01-01T00:00:00.000Z",
        "priority": 4,
        "key": "k",
        "idempotency_key": None,
        "submitted_by": "user",
    }
    assert events[3].payload == {
        "pool_id": pool.id,
        "pool": "review",
        "task_id": second.id,
        "dequeued_at": "2026-01-01T00:00:03.000Z",
        "queued_for_ms": 3000,
        "slot_index": 0,
    }


async def test_a_subscriber_is_told_of_a_receipt_without_waiting_for_the_clock(
    runtime: Runtime,
) -> None:
    pool = await pool_create()
    receipts = event_log_subscribe(TOPIC)
    following = asyncio.ensure_future(anext(receipts))
    while TOPIC not in runtime.event_log.store.awaited:
        await asyncio.sleep(0)

    task = await pool.submit(functools.partial(asyncio.sleep, 0))

    assert (await following).payload["task_id"] == task.id


async def test_a_receipt_does_not_keep_its_task_alive(runtime: Runtime) -> None:
    import gc
    import weakref

    pool = await pool_create(retention=harn.Retention(count=1))
    task = await pool.submit(functools.partial(asyncio.sleep, 0))
    await task.wait()
    watched = weakref.ref(task)
    del task
    await (await pool.submit(functools.partial(asyncio.sleep, 0))).wait()

    gc.collect()

    assert watched() is None
    assert len(await event_log_read(TOPIC)) == 4


async def test_the_dequeue_span_links_back_to_the_submit_span(runtime: Runtime, spans: Any) -> None:
    pool = await pool_create(name="review")
    first = await pool.submit(functools.partial(asyncio.sleep, 0))
    second = await pool.submit(functools.partial(asyncio.sleep, 0))
    await pool_wait([first, second])

    by_task: dict[str, dict[str, Any]] = {}
    for span in spans.get_finished_spans():
        by_task.setdefault(span.attributes["harn.pool.task"], {})[span.name] = span

    for task in (first, second):
        submit = by_task[task.id]["pool.submit review"]
        dequeue = by_task[task.id]["pool.dequeue review"]
        assert [link.context for link in dequeue.links] == [submit.context]
        assert dequeue.parent is None
    assert len(spans.get_finished_spans()) == 4


async def test_a_task_of_a_shared_pool_has_the_same_spans(lasting_url: str, spans: Any) -> None:
    async with Runtime(storage=lasting_url, tenant_id="acme"):
        pool = await pool_create(name="review", scope="tenant")
        task = await pool.submit(functools.partial(asyncio.sleep, 0))
        await task

    found = {
        span.name: span
        for span in spans.get_finished_spans()
        if span.attributes.get("harn.pool.task") == task.id
    }
    submit, dequeue = found["pool.submit review"], found["pool.dequeue review"]
    assert [link.context for link in dequeue.links] == [submit.context]


async def test_without_a_tracer_no_span_is_made(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    import harn.pools.admission as room

    monkeypatch.setattr(room, "instant_span", None)
    pool = await pool_create()

    assert await (await pool.submit(lambda: asyncio.sleep(0, "fine"))) == "fine"


class Label(str):
    """Text of a class of its own."""


@pytest.mark.parametrize("key", [Label("a"), "long" * 20_000])
async def test_the_receipts_of_an_unusual_key_are_written(lasting_url: str, key: str) -> None:
    async with Runtime(storage=lasting_url) as runtime:
        async with await pool_create(name="p") as pool:
            await (await pool.submit(lambda: None, key=key))
        found = await runtime.event_log.read(TOPIC)
        assert [event.payload.get("key") for event in found] == [str(key), None]
        assert [event.headers["schema"][:9] for event in found] == ["harn.pool"] * 2
