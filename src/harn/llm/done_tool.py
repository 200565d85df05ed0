"""The built-in tool `done`, with which a model ends `agent_loop(until_done=True)`."""

from __future__ import annotations

from typing import Annotated

from harn.llm.messages import Message

DONE = "done"

CONTINUE = Message(
    "user",
    "Continue. Nothing is left to do? Then call the tool `done` with your result.",
)
"""What the model is told when it answers without a tool call."""


async def done(result: Annotated[str, "the result, as the user will read it"] = "") -> str:
    """Say that the task is complete, with its result. Call it when nothing is left to do."""
    return result
