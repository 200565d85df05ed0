"""The model calls and tool calls of an agent loop as steps of the job that it works for.

A loop inside a job or a durable pool task asks nothing twice: a later attempt gets the recorded
replies and results, and continues where the last one stopped. Elsewhere the calls are made plainly.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from harn.durable_work import durable_work
from harn.llm.messages import LlmResult, ToolCall, Usage
from harn.state import step, take_number

ToolOutcome = tuple[str, bool]
"""The text of a tool's result or error, and whether it failed."""


class AgentSteps:
    """The steps of one agent loop. Loops of one job are told apart by the order of their starts."""

    def __init__(self, *, remembers: bool = True) -> None:
        self._is_durable = remembers and durable_work() is not None
        self._name = f"agent {take_number('agent') + 1}" if self._is_durable else ""

    async def model(self, ask: Callable[[], Awaitable[LlmResult]]) -> LlmResult:
        """Return the model's reply: the recorded one, or that of *ask*. Cancelling cancels it.

        A recorded reply has no `raw` and no `value`. The prompt may differ from the recorded one:
        a new version of the program continues the conversations of the old one.
        """
        if not self._is_durable:
            return await ask()
        return _reply(await step(f"{self._name}: model", _ask, ask))

    async def tool(
        self, call: ToolCall, name: str, run: Callable[[], Awaitable[ToolOutcome]]
    ) -> ToolOutcome:
        """Return the outcome of *call*: the recorded one, or that of *run*. Cancelling cancels it.

        *name* is the tool's own; the model may have written another one.
        """
        if not self._is_durable:
            return await run()
        text, failed = await step(f"{self._name}: {name}", _run, call.name, call.arguments, run)
        return text, failed


async def _ask(ask: Callable[[], Awaitable[LlmResult]]) -> dict[str, Any]:
    reply = await ask()
    calls = [[call.id, call.name, call.arguments] for call in reply.tool_calls]
    return {**reply.as_dict(), "tool_calls": calls}


async def _run(name: str, arguments: str, run: Callable[[], Awaitable[ToolOutcome]]) -> ToolOutcome:
    return await run()


def _reply(kept: dict[str, Any]) -> LlmResult:
    return LlmResult(
        text=kept["text"],
        usage=Usage(**kept["usage"]),
        model=kept["model"],
        provider=kept["provider"],
        tool_calls=tuple(ToolCall(*each) for each in kept["tool_calls"]),
    )
