"""unsettled_state lists what is under way in each room, until it has ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harn import (
    ClaimLost,
    ModelError,
    Runtime,
    agent_loop,
    channel_emit,
    drain,
    llm_call,
    llm_provider,
    pool_create,
    spawn,
    trigger_register,
    unsettled_state,
    worker_queue,
)
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible
from harn.testing import FakeClock, fresh_runtime
from harn.testing.fake_provider import Fail, FakeModels, Say, Slow
from tests.fake_clock import fake_clock

EMPTY: dict[str, list[object]] = {
    "suspended_subagents": [],
    "queued_triggers": [],
    "partial_handoffs": [],
    "in_flight_llm_calls": [],
    "pool_pending_tasks": [],
}


class Held:
    """A handler that says when it began, and ends when it is let go."""

    def __init__(self) -> None:
        self.began: asyncio.Queue[Any] = asyncio.Queue()
        self.let_go = asyncio.Event()

    async def __call__(self, given: Any) -> None:
        self.began.put_nowait(given)
        await self.let_go.wait()


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with fresh_runtime(clock=FakeClock(), tenant_id="acme") as runtime:
        yield runtime


async def test_nothing_is_unsettled_in_a_fresh_runtime(runtime: Runtime) -> None:
    assert unsettled_state().as_dict() == EMPTY


async def test_jobs_that_a_consumer_works_on_are_partial_handoffs(runtime: Runtime) -> None:
    handler = Held()
    await worker_queue("review").enqueue_many([1, 2, 3])
    await fake_clock(runtime).advance("2s")
    draining = spawn(lambda: drain("review", handler, consumer_id="me", concurrency=2))
    await handler.began.get()
    await handler.began.get()

    first, second = unsettled_state().partial_handoffs

    assert first.as_dict() == {
        "kind": "job",
        "id": "1",
        "name": "review",
        "attempt": 1,
        "tenant_id": None,
        "consumer_id": "me",
        "age_ms": 2000,
    }
    assert second.id == "2"
    assert unsettled_state().as_dict()["partial_handoffs"][0] == first.as_dict()
    handler.let_go.set()
    await draining
    assert unsettled_state().as_dict() == EMPTY


async def test_a_claim_taken_by_hand_is_a_partial_handoff_until_it_is_settled(
    runtime: Runtime,
) -> None:
    queue = worker_queue("review")
    await queue.enqueue_many([1, 2, 3, 4])
    claims = await queue.claim_many("me", 4)

    def listed() -> list[str]:
        return [each.id for each in unsettled_state().partial_handoffs]

    assert listed() == ["1", "2", "3", "4"]
    await claims[0].renew()
    assert listed() == ["1", "2", "3", "4"]
    await claims[0].ack()
    await claims[1].fail("no")
    await claims[2].release(delay="1h")
    assert listed() == ["4"]
    await fake_clock(runtime).advance("6m")
    other = await queue.claim_many("other", 4)
    with pytest.raises(ClaimLost):
        await claims[3].ack()
    assert listed() == ["2", "4"]
    assert [each.job.id for each in other] == [2, 4]


async def test_events_at_a_handler_and_events_at_its_gate_are_listed_apart(
    runtime: Runtime,
) -> None:
    handler = Held()
    await trigger_register(
        id="one-by-one",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler=handler,
        concurrency={"max": 1},
    )
    handles = []
    for payload in range(2):
        emitting = spawn(channel_emit, "x", payload)
        if not payload:
            await handler.began.get()
            await fake_clock(runtime).advance("3s")
        handles += (await emitting).dispatched

    state = unsettled_state()

    [running], [queued] = state.partial_handoffs, state.queued_triggers
    assert (running.kind, running.name, running.id) == (
        "dispatch",
        "one-by-one",
        handles[0].event_id,
    )
    assert (running.age_ms, running.attempt, running.consumer_id) == (3000, 1, None)
    assert (queued.trigger_id, queued.event_id) == ("one-by-one", handles[1].event_id)
    assert queued.age_ms == 0
    handler.let_go.set()
    for handle in handles:
        await handle.wait()
    assert unsettled_state().as_dict() == EMPTY


@pytest.mark.parametrize(
    "gate",
    [
        {"debounce": {"period": "10s"}},
        {"batch": {"size": 5, "timeout": "10s"}},
        {"throttle": {"max": 1, "period": "10s"}},
    ],
    ids=lambda gate: next(iter(gate)),
)
async def test_an_event_that_a_gate_holds_is_listed_until_it_is_handled(
    gate: dict[str, Any], runtime: Runtime
) -> None:
    handled: list[Any] = []
    await trigger_register(
        id="held",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler=handled.append,
        **gate,
    )
    if "throttle" in gate:
        await channel_emit("x", 0)
    [handle] = (await channel_emit("x", 1)).dispatched

    [queued] = unsettled_state().queued_triggers

    assert (queued.trigger_id, queued.event_id) == ("held", handle.event_id)
    await fake_clock(runtime).advance("11s")
    await handle.wait()
    assert handled
    assert unsettled_state().as_dict() == EMPTY


async def test_pool_tasks_are_pending_until_they_end(runtime: Runtime) -> None:
    handler = Held()
    pool = await pool_create(name="review", max_concurrent=1)
    first = await pool.submit(handler, 1)
    second = await pool.submit(handler, 2)
    await handler.began.get()

    pending = unsettled_state().pool_pending_tasks

    assert [(each.id, each.status) for each in pending] == [
        (second.id, "queued"),
        (first.id, "running"),
    ]
    handler.let_go.set()
    await first
    await second
    assert unsettled_state().as_dict() == EMPTY


@contextlib.asynccontextmanager
async def provider(script: Any) -> AsyncIterator[FakeModels]:
    async with FakeModels(script) as models:
        client = OpenAICompatible("fake", models.openai_url, Secret("sk-0123456789"))
        llm_provider("fake", client, default_model="m-1")
        try:
            yield models
        finally:
            await client.aclose()


class Script:
    """Answers with one tool call, then says that it was asked again and does not answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_silent = asyncio.Event()

    def __call__(self, body: dict[str, Any]) -> Say | Slow:
        self.asked += 1
        if self.asked == 1:
            return Say(tool_calls=[("look", {"what": "sky"})])
        self.is_silent.set()
        return Slow(600)


async def test_an_open_agent_and_its_model_call_are_listed_until_they_end() -> None:
    tool, script = Held(), Script()

    async def look(what: str) -> str:
        """Look at something."""
        await tool(what)
        return "seen"

    async with Runtime(tenant_id="acme"), provider(script):
        agent = spawn(lambda: agent_loop("what is up?", tools=[look]), name="watcher")
        await tool.began.get()

        [opened] = unsettled_state().suspended_subagents

        assert (opened.task_name, opened.task_id) == ("watcher", agent.task_id)
        assert (opened.tenant_id, opened.iteration, opened.tool_calls) == ("acme", 1, 1)
        assert unsettled_state().in_flight_llm_calls == []

        tool.let_go.set()
        await script.is_silent.wait()

        [call] = unsettled_state().in_flight_llm_calls
        assert (call.provider, call.model, call.tenant_id) == ("fake", "m-1", "acme")
        assert call.task_id == agent.task_id
        assert unsettled_state().suspended_subagents[0].iteration == 2

        agent.cancel()
        await agent._join()
        assert unsettled_state().as_dict() == EMPTY


async def test_a_failed_model_call_is_no_longer_in_flight() -> None:
    async with Runtime(), provider([Fail(400)]):
        with pytest.raises(ModelError):
            await llm_call("hello")

        assert unsettled_state().as_dict() == EMPTY
