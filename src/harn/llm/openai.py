"""The wire format of OpenAI's chat completions, which most local and hosted servers use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec

from harn.llm.http import Count, Secret, Wire
from harn.llm.messages import Delta, Message, ModelReply, ModelRequest, ToolCall, Usage
from harn.llm.provider import estimate_tokens

PATH = "chat/completions"

# The parts of an answer that are read, as the API has them; others are left alone.


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: Count | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Cached | None = None


class _Answer(msgspec.Struct):
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1)]
    usage: _Usage | None = None
    model: str | None = None


class _Piece(msgspec.Struct):
    content: str | None = None


class _StreamedChoice(msgspec.Struct):
    delta: _Piece | None = None


class _Chunk(msgspec.Struct):
    choices: list[_StreamedChoice] | None = None
    usage: _Usage | None = None
    error: Any = None


class OpenAICompatible:
    """A provider with a chat completions API at *base_url*."""

    def __init__(self, name: str, base_url: str, key: Secret, *, timeout: float = 120.0) -> None:
        headers = {"authorization": f"Bearer {key.reveal()}"} if key.reveal() else {}
        self._wire = Wire(name, base_url, headers, key, timeout)
        # OpenAI's newer models do not accept the older name; most other servers know only that.
        own = "api.openai.com" in base_url
        self._limit_field = "max_completion_tokens" if own else "max_tokens"

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Call the model and return its whole answer. Cancelling closes the connection."""
        answer, headers = await self._wire.post(PATH, self._body(request), request.sending)
        read = self._wire.read(answer, _Answer)
        choice = read.choices[0]
        return ModelReply(
            text=choice.message.content or "",
            usage=_usage(read.usage) or Usage(),
            model=read.model or request.model,
            tool_calls=tuple(_tool_call(each) for each in choice.message.tool_calls or ()),
            finish=choice.finish_reason,
            headers=headers,
            raw=answer,
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Yield the answer piece by piece; closing the iterator closes the connection."""
        body = {**self._body(request), "stream": True, "stream_options": {"include_usage": True}}
        first = True
        async for headers, data in self._wire.events(PATH, body, request.sending):
            if first:
                first = False
                yield Delta(headers=headers)
            if data.strip() == "[DONE]":
                return
            for delta in self._deltas(self._wire.decoded(data)):
                yield delta
        raise self._wire.error("the stream ended without '[DONE]'", retryable=True)

    def _deltas(self, data: Any) -> list[Delta]:
        chunk = self._wire.read(data, _Chunk)
        if chunk.error is not None:
            raise self._wire.error(f"the stream failed: {chunk.error}", retryable=True)
        texts = [each.delta.content for each in chunk.choices or () if each.delta is not None]
        usage = _usage(chunk.usage)
        return [
            *(Delta(text=text) for text in texts if text),
            *([] if usage is None else [Delta(usage=usage)]),
        ]

    def count_tokens(self, request: ModelRequest) -> int:
        """Estimate the input tokens from the length of the text."""
        return estimate_tokens(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._wire.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        messages = [{"role": "system", "content": request.system}] if request.system else []
        body: dict[str, Any] = {
            "model": request.model,
            "messages": [*messages, *(_message(each) for each in request.messages)],
            self._limit_field: request.max_tokens,
        }
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": dict(tool.parameters),
                    },
                }
                for tool in request.tools
            ]
        if request.schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(request.schema)},
            }
        return {**body, **request.extra}


def _message(message: Message) -> dict[str, Any]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text}
    wire: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.tool_calls:
        wire["content"] = message.text or None
        wire["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return wire


def _tool_call(call: _Call) -> ToolCall:
    return ToolCall(call.id, call.function.name, call.function.arguments or "{}")


def _usage(usage: _Usage | None) -> Usage | None:
    if usage is None or usage == _Usage():
        return None
    details = usage.prompt_tokens_details
    return Usage(
        usage.prompt_tokens or 0,
        usage.completion_tokens or 0,
        (details.cached_tokens or 0) if details else 0,
    )
