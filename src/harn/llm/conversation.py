"""The conversation of an agent loop: open, and as its result."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from harn.context import Task
from harn.llm.messages import LlmResult, Message, Usage
from harn.runtime import Runtime
from harn.unsettled_sources import OpenAgent, UnsettledSources

Stop = Literal["done", "max_iterations", "closed"]


@dataclass(frozen=True, slots=True)
class AgentResult:
    """The outcome of an agent loop: its last text, and the conversation.

    *stop* tells why it ended: the model was `"done"`, it used up its `"max_iterations"`, or the
    mailbox of a daemon was `"closed"`. *iterations* counts the calls of the model.

    >>> import harn
    >>> harn.AgentResult("Fixed.", "done", 2, harn.Usage(90, 10), ()).done
    True
    """

    text: str
    stop: Stop
    iterations: int
    usage: Usage
    messages: tuple[Message, ...]
    tool_calls: int = 0

    @property
    def done(self) -> bool:
        """Whether the model gave a final answer before *max_iterations* was reached.

        A daemon has no final answer.
        """
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
class Conversation:
    """The messages so far, and the tokens that they have used."""

    messages: list[Message]
    usage: Usage = field(default_factory=Usage)
    tool_calls: int = 0
    iteration: int = 0

    def add_reply(self, reply: LlmResult) -> None:
        self.messages.append(Message("assistant", reply.text, reply.tool_calls))
        self.usage = self.usage + reply.usage
        self.tool_calls += len(reply.tool_calls)


class OpenAgents:
    """The agent loops of a runtime that have not returned."""

    def __init__(self, runtime: Runtime) -> None:
        self._open: dict[Conversation, tuple[Task, int]] = {}
        self._runtime = runtime
        runtime.service(UnsettledSources).add("suspended_subagents", self._agents)

    @contextlib.contextmanager
    def opened(self, talk: Conversation, task: Task) -> Iterator[None]:
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
