"""What a provider must implement: three methods. Any object that has them is a provider.

harn has two wire formats, OpenAI-compatible chat completions and Anthropic messages. Any other SDK
can be wrapped in twenty lines (see `docs/concepts/models.md`).
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import Protocol, runtime_checkable

from harn.llm.messages import Delta, ModelReply, ModelRequest

BYTES_PER_TOKEN = 4
MARGIN = 1.15
"""The factor by which an estimate is raised: a reservation that was too large costs little."""


@runtime_checkable
class Provider(Protocol):
    """A model that can be called.

    >>> from harn import Usage
    >>> class Echo:
    ...     async def complete(self, request):
    ...         return ModelReply(request.messages[-1].text, Usage(1, 1), request.model)
    ...     async def stream(self, request):
    ...         yield Delta(request.messages[-1].text)
    ...     def count_tokens(self, request):
    ...         return 1
    >>> isinstance(Echo(), Provider)
    True
    """

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Call the model and return its whole answer; raise `ModelError` if it fails.

        Cancelling closes the connection.
        """
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Call the model and yield its answer piece by piece.

        Closing the iterator closes the connection.
        """
        ...

    def count_tokens(self, request: ModelRequest) -> int:
        """Estimate the input tokens of *request* before it is sent."""
        ...


def estimate_tokens(request: ModelRequest) -> int:
    """Estimate the input tokens from the length of the text, rather too high than too low.

    >>> from harn.llm.messages import Message
    >>> estimate_tokens(ModelRequest("m", (Message("user", "x" * 400),)))
    115
    """
    size = len((request.system or "").encode("utf-8", "surrogatepass"))
    for message in request.messages:
        size += len(message.text.encode("utf-8", "surrogatepass"))
        size += sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    for tool in request.tools:
        size += len(tool.name) + len(tool.description) + len(str(tool.parameters))
    return math.ceil(round(size / BYTES_PER_TOKEN * MARGIN, 6))
