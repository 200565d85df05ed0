"""An agent loop inside a job: what was asked and done before is not asked and done again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from harn import (
    Job,
    RetryPolicy,
    Runtime,
    Usage,
    agent_loop,
    drain,
    event_log_read,
    llm_provider,
    parallel_each,
    topics,
    worker_queue,
)
from harn.llm.http import Secret
from harn.llm.openai import OpenAICompatible
from harn.testing.fake_provider import Fail, FakeModels, Say, Step


class Killed(BaseException):
    """Ends an attempt where it is raised; unlike a tool's error it does not go to the model."""


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_LLM_RATE_LIMIT_DURABLE", "0")


@asynccontextmanager
async def provider(
    script: Any, storage: str = "memory://"
) -> AsyncIterator[tuple[FakeModels, Runtime]]:
    async with FakeModels(script) as models, Runtime(storage=storage) as runtime:
        client = OpenAICompatible("fake", models.openai_url, Secret("k"))
        llm_provider("fake", client, default_model="m-1")
        try:
            yield models, runtime
        finally:
            await client.aclose()


async def handled(handler: Callable[[Job], Any]) -> Any:
    """Return the outcome of a job, whose failed attempts are repeated at once."""
    receipt = await worker_queue("agents").enqueue(None)
    await drain("agents", handler, retry=RetryPolicy(backoff=0, jitter=0))
    return await receipt.result(timeout=30)


def handler_of(task: str, *tools: Callable[..., Any]) -> Callable[[Job], Any]:
    async def handle(job: Job) -> str:
        return (await agent_loop(task, tools=tools)).text

    return handle


def asks_for(*calls: tuple[str, dict[str, Any]]) -> Say:
    return Say("", tool_calls=calls, usage=(10, 1))


async def test_a_loop_continues_after_its_last_recorded_call(storage_url: str) -> None:
    looked: list[int] = []

    async def look(at: int) -> str:
        """Look at something."""
        looked.append(at)
        return f"seen {at}"

    async def handle(job: Job) -> Any:
        result = await agent_loop("look around", tools=[look])
        return [result.as_dict(), [message.text for message in result.messages]]

    script = [
        asks_for(("look", {"at": 1})),
        asks_for(("look", {"at": 2}), ("look", {"at": 3})),
        Fail(400),  # ends the first attempt
        Say("all seen", usage=(10, 1)),
    ]
    async with provider(script, storage_url) as (models, runtime):
        result, texts = await handled(handle)
        await runtime.event_log.flush()
        audit = [event.kind for event in await event_log_read(topics.AGENTS)]

    assert len(models.received) == 4
    assert sorted(looked) == [1, 2, 3]
    assert result["usage"] == Usage(30, 3).as_dict()
    assert (result["iterations"], result["tool_calls"]) == (3, 3)
    assert texts == ["look around", "", "seen 1", "", "seen 2", "seen 3", "all seen"]
    assert audit.count("agent_model_called") == audit.count("agent_tool_called") == 3


async def test_an_agent_that_is_a_tool_continues_too() -> None:
    alive: list[bool] = []

    async def look() -> str:
        """Look; the first process dies of it."""
        if not alive:
            alive.append(True)
            raise Killed
        return "seen"

    async def ask_the_expert(question: str) -> str:
        """Ask another agent."""
        return (await agent_loop(question, tools=[look])).text

    script = [
        asks_for(("ask_the_expert", {"question": "what is there?"})),
        asks_for(("look", {})),
        Say("a door"),
        Say("there is a door"),
    ]
    async with provider(script) as (models, _):
        text = await handled(handler_of("go", ask_the_expert))

    assert text == "there is a door"
    assert len(models.received) == 4


async def test_loops_of_one_job_keep_their_own_replies() -> None:
    attempts: list[int] = []

    async def ask(task: str) -> str:  # not a lambda: threads would begin the loops in any order
        return (await agent_loop(task)).text

    async def handle(job: Job) -> Any:
        attempts.append(job.attempts)
        texts = await parallel_each(["one", "two", "three"], ask)
        if len(attempts) == 1:
            raise Killed
        return texts

    def echo(body: dict[str, Any]) -> Step:
        return Say(f"did {body['messages'][-1]['content']}")

    async with provider(echo) as (models, _):
        texts = await handled(handle)

    assert texts == ["did one", "did two", "did three"]
    assert len(models.received) == 3


async def test_a_changed_prompt_continues_the_recorded_conversation() -> None:
    async def handle(job: Job) -> Any:
        result = await agent_loop(f"attempt {job.attempts}")
        if job.attempts == 1:
            raise Killed
        return result.text

    async with provider([Say("done")]) as (models, _):
        assert await handled(handle) == "done"

    assert len(models.received) == 1
