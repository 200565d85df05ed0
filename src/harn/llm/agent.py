"""The agent loop: call the model, run the tools that it asks for, call it with the results."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from harn import topics
from harn.checks import whole_number
from harn.context import Task
from harn.current import current_frame, current_runtime
from harn.errors import did_you_mean
from harn.llm.call import llm_call
from harn.llm.messages import LlmResult, Message, ToolCall, Usage
from harn.llm.tools import Tool, as_text, tools_of
from harn.runtime import Runtime
from harn.tasks import is_async_callable, parallel_each, spawn
from harn.unsettled import OpenAgent, UnsettledSources

MOST_TOOLS_AT_ONCE = 8

OPTIONS = frozenset(inspect.signature(llm_call).parameters) - {"prompt", "system", "tools"}
"""The options that `agent_loop` passes to each call of the model."""

Stop = Literal["done", "max_iterations"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The outcome of an agent loop: its last text, and the whole conversation."""

    text: str
    stop: Stop
    iterations: int
    usage: Usage
    messages: tuple[Message, ...]
    tool_calls: int = 0

    @property
    def done(self) -> bool:
        """Whether the model gave a final answer before *max_iterations* was reached."""
        return self.stop == "done"

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the conversation, JSON-ready."""
        return {
            "text": self.text,
            "stop": self.stop,
            "iterations": self.iterations,
            "usage": self.usage.as_dict(),
            "tool_calls": self.tool_calls,
        }


@dataclass(slots=True, eq=False)
class _Conversation:
    """The messages so far, and the tokens that they have used."""

    messages: list[Message]
    usage: Usage = field(default_factory=Usage)
    tool_calls: int = 0
    iteration: int = 1

    def add_reply(self, reply: LlmResult) -> None:
        self.messages.append(Message("assistant", reply.text, reply.tool_calls))
        self.usage = self.usage + reply.usage
        self.tool_calls += len(reply.tool_calls)


class OpenAgents:
    """The agent loops of a runtime that have not returned."""

    def __init__(self, runtime: Runtime) -> None:
        self._open: dict[_Conversation, tuple[Task, int]] = {}
        self._runtime = runtime
        runtime.service(UnsettledSources).add("suspended_subagents", self._agents)

    @contextlib.contextmanager
    def opened(self, talk: _Conversation, task: Task) -> Iterator[None]:
        """List *talk*, held by *task*, as open during the block."""
        self._open[talk] = task, self._runtime.clock.now_ms()
        try:
            yield
        finally:
            del self._open[talk]

    def _agents(self) -> list[OpenAgent]:
        now = self._runtime.clock.now_ms()
        return [
            OpenAgent(
                task_id=task.id,
                task_name=task.name,
                tenant_id=task.ambient.tenant_id,
                iteration=talk.iteration,
                tool_calls=talk.tool_calls,
                started_at_ms=started,
                age_ms=max(0, now - started),
            )
            for talk, (task, started) in self._open.items()
        ]


async def agent_loop(
    task: str | Sequence[Message],
    system: str | None = None,
    *,
    tools: Sequence[Callable[..., Any] | Tool] = (),
    max_iterations: int = 24,
    max_concurrent_tools: int = MOST_TOOLS_AT_ONCE,
    **options: Any,
) -> AgentResult:
    """Let a model work on *task* with *tools* until it answers without calling one.

    Tools are typed functions, async or plain. Tools that the model asks for together run
    concurrently, at most *max_concurrent_tools* at once. The error of a tool that fails, or is
    called with wrong arguments, goes to the model, which may try something else. *options* are
    those of `llm_call`.

    Cancelling cancels the call or the tools under way and waits until they have ended.
    """
    whole_number("max_iterations", max_iterations, least=1)
    for name in options:
        if name not in OPTIONS:
            raise TypeError(
                f"agent_loop() got an unexpected keyword argument {name!r}"
                f"{did_you_mean(name, sorted(OPTIONS))}"
            )
    known = tools_of(tools)
    specs = [tool.spec for tool in known.values()]
    talk = _Conversation([Message("user", task)] if isinstance(task, str) else list(task))
    _record("agent_started", {"tools": sorted(known), "max_iterations": max_iterations})
    runner = current_frame().task
    with runner.runtime.service(OpenAgents).opened(talk, runner):
        for talk.iteration in range(1, max_iterations + 1):
            reply = await llm_call(talk.messages, system, tools=specs, **options)
            talk.add_reply(reply)
            _record("agent_model_called", {"iteration": talk.iteration, **reply.as_dict()["usage"]})
            if not reply.tool_calls:
                return _ended("done", reply.text, talk)
            talk.messages += await parallel_each(
                reply.tool_calls,
                lambda call: _run_tool(known, call),
                max_concurrent=max_concurrent_tools,
            )
    return _ended("max_iterations", reply.text, talk)


async def _run_tool(known: Mapping[str, Tool], call: ToolCall) -> Message:
    """Run one tool and return the message for the model: its result, or its error."""
    text, failed = await _outcome(known, call)
    _record("agent_tool_called", {"tool": call.name, "call_id": call.id, "failed": failed})
    return Message("tool", text, tool_call_id=call.id, is_error=failed)


async def _outcome(known: Mapping[str, Tool], call: ToolCall) -> tuple[str, bool]:
    tool = known.get(call.name)
    if tool is None:
        return f"there is no tool {call.name!r}; the tools are: {', '.join(known) or 'none'}", True
    try:
        arguments = tool.arguments(call.arguments)
    except ValueError as error:
        return f"the arguments do not fit: {error}", True
    try:
        if is_async_callable(tool.fn):
            return as_text(await tool.fn(**arguments)), False
        return as_text(await spawn(lambda: tool.fn(**arguments), name=tool.name)), False
    except Exception as error:
        return f"{type(error).__name__}: {error}", True


def _ended(stop: Stop, text: str, talk: _Conversation) -> AgentResult:
    result = AgentResult(
        text, stop, talk.iteration, talk.usage, tuple(talk.messages), talk.tool_calls
    )
    summary = result.as_dict()
    del summary["text"]
    _record("agent_finished", summary)
    return result


def _record(kind: str, payload: dict[str, Any]) -> None:
    """Write an event to the log; it never has the text of a message."""
    task = current_frame().task
    current_runtime().event_log.record(
        topics.AGENTS, kind, {"task_id": task.id, "tenant_id": task.ambient.tenant_id, **payload}
    )
