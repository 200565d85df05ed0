"""`a2a-sdk`'s own server as the remote agent that `a2a://` calls."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from a2a.helpers.proto_helpers import (
    get_data_parts,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, Role, TaskState
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    UnsupportedOperationError,
)
from starlette.applications import Starlette

from harn import Runtime, trigger_fire, trigger_register
from harn.portal import Listening, bind
from harn.triggers import A2aTarget

Execute = Callable[[Any, Any], Awaitable[None]]


class Agent(AgentExecutor):
    """An agent that notes what it was told and does as *execute* says."""

    def __init__(self, execute: Execute) -> None:
        self.told: list[Any] = []
        self.ids: list[str] = []
        self._execute = execute

    async def execute(self, context: Any, event_queue: Any) -> None:
        self.told += get_data_parts(context.message.parts)
        self.ids.append(context.message.message_id)
        await self._execute(context, event_queue)

    async def cancel(self, context: Any, event_queue: Any) -> None:
        raise NotImplementedError


@contextlib.asynccontextmanager
async def serving(execute: Execute) -> AsyncIterator[tuple[Agent, str]]:
    """Serve an agent with the SDK's request handler; yield it and its address."""
    agent = Agent(execute)
    interface = AgentInterface(url="http://x/", protocol_binding="JSONRPC", protocol_version="1.0")
    card = AgentCard(
        name="peer",
        description="a peer",
        version="1",
        supported_interfaces=[interface],
        capabilities=AgentCapabilities(streaming=False),
        default_input_modes=["application/json"],
        default_output_modes=["text/plain"],
    )
    handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card)
    app = Starlette(routes=create_jsonrpc_routes(handler, "/agent"))
    async with Runtime(), Listening(app, bind("127.0.0.1", 0)) as listening:
        yield agent, f"a2a+http://{listening.address}/agent"


async def fire(uri: str, attempts: int = 1) -> Any:
    target = A2aTarget(uri, allow=["a2a+http://127.0.0.1"])
    await trigger_register(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={},
        handler=target,
        retry={"max": attempts, "backoff": "immediate"},
    )
    return await trigger_fire("t", {"n": 1})


def ends_as(state: TaskState, text: str) -> Execute:
    async def execute(context: Any, event_queue: Any) -> None:
        task = new_task_from_user_message(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        said = updater.new_agent_message([new_text_part(text)])
        await updater.update_status(state, said)

    return execute


def raises(error: Exception) -> Execute:
    async def execute(context: Any, event_queue: Any) -> None:
        raise error

    return execute


async def test_a_server_takes_our_event_as_a_message_and_answers_with_one() -> None:
    async def execute(context: Any, event_queue: Any) -> None:
        await event_queue.enqueue_event(new_text_message("noted", role=Role.ROLE_AGENT))

    async with serving(execute) as (agent, uri):
        handle = await fire(uri)

    assert handle.error is None
    assert handle.result["result"]["message"]["parts"][0]["text"] == "noted"
    assert agent.told[0]["provider_payload"]["payload"] == {"n": 1}


@pytest.mark.parametrize(
    "state",
    [
        TaskState.TASK_STATE_COMPLETED,
        TaskState.TASK_STATE_INPUT_REQUIRED,
        TaskState.TASK_STATE_AUTH_REQUIRED,
    ],
    ids=TaskState.Name,
)
async def test_a_task_that_is_done_or_waits_is_the_receipt(state: TaskState) -> None:
    async with serving(ends_as(state, "so far")) as (_, uri):
        handle = await fire(uri)

    assert handle.status == "dispatched"
    task = handle.result["result"]["task"]
    assert task["status"]["state"] == TaskState.Name(state)
    assert task["status"]["message"]["parts"] == [{"text": "so far"}]


@pytest.mark.parametrize(
    ("state", "word", "attempts"),
    [
        (TaskState.TASK_STATE_FAILED, "failed", 3),
        (TaskState.TASK_STATE_REJECTED, "rejected", 1),
        (TaskState.TASK_STATE_CANCELED, "canceled", 1),
    ],
    ids=["failed", "rejected", "canceled"],
)
async def test_a_task_that_ended_badly_is_a_failed_attempt(
    state: TaskState, word: str, attempts: int
) -> None:
    async with serving(ends_as(state, "no such branch")) as (agent, uri):
        handle = await fire(uri, attempts=3)

    assert handle.status == "dlq"
    assert f"ended as {word}: no such branch" in str(handle.error)
    assert len(agent.ids) == attempts
    assert len(set(agent.ids)) == 1  # a retry is the same message to the agent


@pytest.mark.parametrize(
    ("error", "attempts"),
    [
        (InvalidParamsError("no data parts, please"), 1),
        (UnsupportedOperationError("not today"), 1),
        (ContentTypeNotSupportedError("text only"), 1),
        (InternalError("it broke"), 2),
        (InvalidAgentResponseError("it stammered"), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, A2AError) else "",
)
async def test_an_error_is_tried_again_only_where_that_may_help(
    error: A2AError, attempts: int
) -> None:
    async with serving(raises(error)) as (agent, uri):
        handle = await fire(uri, attempts=2)

    assert handle.status == "dlq"
    assert f"refused: {error.message}" in str(handle.error)
    assert len(agent.ids) == attempts


async def test_a_path_where_no_agent_is_served_is_not_tried_again() -> None:
    async with serving(raises(AssertionError())) as (agent, uri):
        handle = await fire(f"{uri}/elsewhere", attempts=3)

    assert "answered 404" in str(handle.error)
    assert agent.ids == []
