"""The wire format of Anthropic's messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec

from harn.llm.http import Count, Secret, Wire
from harn.llm.messages import Delta, Message, ModelReply, ModelRequest, ToolCall, Usage
from harn.llm.provider import estimate_tokens

PATH = "v1/messages"
VERSION = "2023-06-01"
STRUCTURED = "answer"
"""The name of the tool that the model must call to give a structured answer."""
PARTS: dict[str, dict[str, tuple[type, ...]]] = {
    "text": {"text": (str,)},
    "tool_use": {"id": (str,), "name": (str,), "input": (dict, type(None))},
}
"""The blocks of an answer that are read, and the types of their parts."""

# The parts of an answer that are read, as the API has them; others are left alone.


class _Block(msgspec.Struct):
    type: str
    text: Any = None
    id: Any = None
    name: Any = None
    input: Any = None

    def __post_init__(self) -> None:
        for part, types in PARTS.get(self.type, {}).items():
            if not isinstance(getattr(self, part), types):
                raise ValueError(f"A block `{self.type}` has no `{part}` of the expected type")


class _Usage(msgspec.Struct):
    input_tokens: Count | None = None
    output_tokens: Count | None = None
    cache_creation_input_tokens: Count | None = None
    cache_read_input_tokens: Count | None = None


class _Answer(msgspec.Struct):
    content: list[_Block]
    usage: _Usage | None = None
    model: str | None = None
    stop_reason: str | None = None


class _Begun(msgspec.Struct):
    usage: _Usage | None = None


class _MessageStart(msgspec.Struct):
    message: _Begun


class _Piece(msgspec.Struct):
    text: str | None = None


class _BlockDelta(msgspec.Struct):
    delta: _Piece | None = None


class _MessageDelta(msgspec.Struct):
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str | None = None
    error: Any = None


class AnthropicMessages:
    """A provider with Anthropic's messages API at *base_url*."""

    def __init__(self, name: str, base_url: str, key: Secret, *, timeout: float = 120.0) -> None:
        headers = {"x-api-key": key.reveal(), "anthropic-version": VERSION}
        self._wire = Wire(name, base_url, headers, key, timeout)

    async def complete(self, request: ModelRequest) -> ModelReply:
        """Call the model and return its whole answer. Cancelling closes the connection."""
        answer, headers = await self._wire.post(PATH, self._body(request), request.sending)
        read = self._wire.read(answer, _Answer)
        calls = tuple(_tool_call(each) for each in read.content if each.type == "tool_use")
        text = "".join(each.text for each in read.content if each.type == "text")
        if request.schema is not None:
            structured = [call.arguments for call in calls if call.name == STRUCTURED]
            text = structured[0] if structured else text
            calls = tuple(call for call in calls if call.name != STRUCTURED)
        return ModelReply(
            text=text,
            usage=_usage(read.usage),
            model=read.model or request.model,
            tool_calls=calls,
            finish=read.stop_reason,
            headers=headers,
            raw=answer,
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        """Yield the answer piece by piece; closing the iterator closes the connection."""
        used = Usage()
        first = True
        body = {**self._body(request), "stream": True}
        async for headers, data in self._wire.events(PATH, body, request.sending):
            if first:
                first = False
                yield Delta(headers=headers)
            event = self._wire.decoded(data)
            kind = self._wire.read(event, _Event).type
            if kind == "message_stop":
                return
            text, usage = self._part(kind, event, used)
            if text:
                yield Delta(text=text)
            if usage is not None:
                used = usage
                yield Delta(usage=used)
        raise self._wire.error("the stream ended without 'message_stop'", retryable=True)

    def _part(self, kind: str | None, event: Any, used: Usage) -> tuple[str | None, Usage | None]:
        """Return the text of an event of a stream, and the usage that it adds to *used*."""
        read = self._wire.read
        if kind == "message_start":
            return None, _usage(read(event, _MessageStart).message.usage)
        if kind == "content_block_delta":
            piece = read(event, _BlockDelta).delta
            return None if piece is None else piece.text, None
        if kind == "message_delta":
            usage = read(event, _MessageDelta).usage or _Usage()
            return None, replace(used, output_tokens=usage.output_tokens or used.output_tokens)
        if kind == "error":
            problem = read(event, _Event).error
            reason = problem.get("message", problem) if isinstance(problem, dict) else problem
            raise self._wire.error(f"the stream failed: {reason}", retryable=True)
        return None, None

    def count_tokens(self, request: ModelRequest) -> int:
        """Estimate the input tokens from the length of the text."""
        return estimate_tokens(request)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._wire.aclose()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "messages": _turns(request.messages),
        }
        if request.system:
            body["system"] = request.system
        if request.temperature is not None:
            body["temperature"] = request.temperature
        tools = [
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": dict(tool.parameters),
            }
            for tool in request.tools
        ]
        if request.schema is not None:
            description = "Give the final answer in exactly this form."
            tools.append(
                {
                    "name": STRUCTURED,
                    "description": description,
                    "input_schema": dict(request.schema),
                }
            )
            body["tool_choice"] = {"type": "tool", "name": STRUCTURED}
        if tools:
            body["tools"] = tools
        return {**body, **request.extra}


def _turns(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Return messages as alternating turns: consecutive tool results become one turn."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": role, "content": blocks})
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    if message.role == "tool":
        return [
            {
                "type": "tool_result",
                "tool_use_id": message.tool_call_id,
                "content": message.text,
                "is_error": message.is_error,
            }
        ]
    blocks: list[dict[str, Any]] = []
    if message.text:
        blocks.append({"type": "text", "text": message.text})
    for call in message.tool_calls:
        blocks.append(
            {
                "type": "tool_use",
                "id": call.id,
                "name": call.name,
                "input": _arguments(call.arguments),
            }
        )
    return blocks


def _arguments(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}


def _tool_call(block: _Block) -> ToolCall:
    arguments = msgspec.json.encode(block.input or {}).decode()
    return ToolCall(block.id, block.name, arguments)


def _usage(usage: _Usage | None) -> Usage:
    if usage is None:
        return Usage()
    read = usage.cache_read_input_tokens or 0
    given = (usage.input_tokens or 0) + (usage.cache_creation_input_tokens or 0) + read
    return Usage(given, usage.output_tokens or 0, read)
