"""The answers of a model provider, whole and streamed, in the formats of OpenAI and Anthropic."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

CREATED = 1_767_225_600
"""The value of OpenAI's field `created` in every answer: the start of 2026."""


@dataclass(frozen=True, slots=True)
class ScriptedAnswer:
    """One answer of a model, before it is formatted; *usage* is input and output tokens."""

    model: str
    number: int
    text: str
    tool_calls: Sequence[tuple[str, dict[str, Any]]]
    usage: tuple[int, int]


def openai_message(answer: ScriptedAnswer) -> dict[str, Any]:
    """Return the body of a chat completion."""
    calls = [
        {
            "id": f"call_{answer.number}_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for index, (name, arguments) in enumerate(answer.tool_calls)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if calls:
        message["tool_calls"] = calls
    finish = "tool_calls" if calls else "stop"
    return {
        "id": f"chatcmpl-{answer.number}",
        "object": "chat.completion",
        "created": CREATED,
        "model": answer.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": _openai_usage(answer.usage),
    }


def openai_events(answer: ScriptedAnswer) -> Iterable[str]:
    """Yield the events of a chat completion, a word of the text in each."""
    base = {
        "id": f"chatcmpl-{answer.number}",
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": answer.model,
    }

    def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({**base, 'choices': [choice]})}\n\n"

    yield chunk({"role": "assistant", "content": ""})
    for word in _words(answer.text):
        yield chunk({"content": word})
    yield chunk({}, "stop")
    yield f"data: {json.dumps({**base, 'choices': [], 'usage': _openai_usage(answer.usage)})}\n\n"
    yield "data: [DONE]\n\n"


def anthropic_message(answer: ScriptedAnswer) -> dict[str, Any]:
    """Return the body of a message."""
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    for index, (name, arguments) in enumerate(answer.tool_calls):
        id = f"toolu_{answer.number}_{index}"
        content.append({"type": "tool_use", "id": id, "name": name, "input": arguments})
    return {
        "id": f"msg_{answer.number}",
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": "tool_use" if answer.tool_calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": answer.usage[0], "output_tokens": answer.usage[1]},
    }


def anthropic_events(answer: ScriptedAnswer) -> Iterable[str]:
    """Yield the events of a message, a word of the text in each."""

    def event(kind: str, **fields: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"

    begun = ScriptedAnswer(answer.model, answer.number, "", (), (answer.usage[0], 1))
    yield event("message_start", message={**anthropic_message(begun), "stop_reason": None})
    yield event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    for word in _words(answer.text):
        yield event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})
    yield event("content_block_stop", index=0)
    ended = {"stop_reason": "end_turn", "stop_sequence": None}
    yield event("message_delta", delta=ended, usage={"output_tokens": answer.usage[1]})
    yield event("message_stop")


def _words(text: str) -> list[str]:
    words = text.split(" ")
    return [word if i == len(words) - 1 else f"{word} " for i, word in enumerate(words)]


def _openai_usage(usage: tuple[int, int]) -> dict[str, int]:
    given, made = usage
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}
