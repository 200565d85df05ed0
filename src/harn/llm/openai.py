"""The wire format of OpenAI's chat completions, which most local and hosted servers use."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from harn.llm.http import Secret, Wire
from harn.llm.messages import Delta, Message, ModelReply, ModelRequest, ToolCall, Usage
from harn.llm.provider import estimate_tokens

PATH = "chat/completions"


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
        with self._wire.reading():
            choice = answer["choices"][0]
            message = choice["message"]
            return ModelReply(
                text=message.get("content") or "",
                usage=_usage(answer.get("usage")) or Usage(),
                model=answer.get("model") or request.model,
                tool_calls=tuple(_tool_call(each) for each in message.get("tool_calls") or ()),
                finish=choice.get("finish_reason"),
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

    def _deltas(self, chunk: Any) -> list[Delta]:
        with self._wire.reading():
            if "error" in chunk:
                raise self._wire.error(f"the stream failed: {chunk['error']}", retryable=True)
            choices = chunk.get("choices") or ()
            texts = [(choice.get("delta") or {}).get("content") for choice in choices]
            usage = _usage(chunk.get("usage"))
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


def _tool_call(wire: dict[str, Any]) -> ToolCall:
    function = wire["function"]
    return ToolCall(wire["id"], function["name"], function.get("arguments") or "{}")


def _usage(wire: dict[str, Any] | None) -> Usage | None:
    if not wire:
        return None
    details = wire.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(
        int(wire.get("prompt_tokens") or 0),
        int(wire.get("completion_tokens") or 0),
        int(cached or 0),
    )
