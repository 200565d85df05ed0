"""Both wire formats against a real HTTP server, faults included."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harn.errors import ModelError
from harn.llm.anthropic import AnthropicMessages
from harn.llm.http import Secret
from harn.llm.messages import Message, ModelRequest, ToolCall, ToolSpec, Usage
from harn.llm.openai import OpenAICompatible
from harn.llm.provider import Provider
from harn.testing.fake_provider import CutShort, Fail, FakeModels, Garbage, Say, Slow

KEY = "sk-canary-0123456789"
FORMATS = ["openai", "anthropic"]


def client(
    kind: str, models: FakeModels, timeout: float = 10.0
) -> OpenAICompatible | AnthropicMessages:
    if kind == "openai":
        return OpenAICompatible("fake", models.openai_url, Secret(KEY), timeout=timeout)
    return AnthropicMessages("fake", models.url, Secret(KEY), timeout=timeout)


@contextlib.asynccontextmanager
async def talking(
    kind: str, script: Any, timeout: float = 10.0
) -> AsyncIterator[tuple[OpenAICompatible | AnthropicMessages, FakeModels]]:
    async with FakeModels(script) as models:
        provider = client(kind, models, timeout)
        try:
            yield provider, models
        finally:
            await provider.aclose()


def request(text: str = "hello", **more: Any) -> ModelRequest:
    return ModelRequest("m-1", (Message("user", text),), "be brief", **more)


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_whole_answer(kind: str) -> None:
    async with talking(kind, [Say("hi there", usage=(12, 3))]) as (provider, models):
        assert isinstance(provider, Provider)

        reply = await provider.complete(request(temperature=0.5, extra={"top_p": 0.9}))

    assert (reply.text, reply.usage, reply.model) == ("hi there", Usage(12, 3), "m-1")
    sent = models.received[0].body
    assert sent["temperature"] == 0.5
    assert sent["top_p"] == 0.9
    assert KEY in " ".join(models.received[0].headers.values())


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_streamed_answer(kind: str) -> None:
    async with talking(kind, [Say("one two three", usage=(7, 5))]) as (provider, _):
        deltas = [delta async for delta in provider.stream(request())]

    assert [delta.text for delta in deltas if delta.text] == ["one ", "two ", "three"]
    assert [delta.usage for delta in deltas if delta.usage][-1] == Usage(7, 5)


@pytest.mark.parametrize("kind", FORMATS)
async def test_sending_is_told_just_before_the_request_goes_out(kind: str) -> None:
    async with talking(kind, [Say("one"), Say("two")]) as (provider, models):
        seen: list[int] = []

        async def sending() -> None:
            await asyncio.sleep(0)
            seen.append(len(models.received))

        await provider.complete(request(sending=sending))
        async with contextlib.aclosing(provider.stream(request(sending=sending))) as deltas:
            async for _ in deltas:
                pass

    assert seen == [0, 1]


@pytest.mark.parametrize("kind", FORMATS)
async def test_tools_and_their_results_go_both_ways(kind: str) -> None:
    add = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
    talk = (
        Message("user", "2+2 and 3+3"),
        Message("assistant", "", (ToolCall("c1", "add", '{"a": 2}'), ToolCall("c2", "add", "{}"))),
        Message("tool", "4", tool_call_id="c1"),
        Message("tool", "boom", tool_call_id="c2", is_error=True),
    )
    script = [Say(tool_calls=[("add", {"a": 1})])]
    async with talking(kind, script) as (provider, models):
        reply = await provider.complete(ModelRequest("m-1", talk, tools=(add,)))

    assert [(call.name, call.arguments.replace(" ", "")) for call in reply.tool_calls] == [
        ("add", '{"a":1}')
    ]
    messages = models.received[0].body["messages"]
    if kind == "openai":
        assert [each["role"] for each in messages] == ["user", "assistant", "tool", "tool"]
    else:
        assert [each["role"] for each in messages] == ["user", "assistant", "user"]
        assert [block["is_error"] for block in messages[2]["content"]] == [False, True]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(
    ("step", "status", "retryable"),
    [
        (Fail(429, "slow down", retry_after=2), 429, True),
        (Fail(500), 500, True),
        (Fail(529), 529, True),
        (Fail(401, f"bad key {KEY}"), 401, False),
        (Fail(400, "x" * 5000), 400, False),
        (Garbage(), None, True),
        (Garbage(b"{}"), None, True),
        (Garbage(b"[" * 100_000), None, True),
        (Garbage(b'{"choices": [{"message": {}}], "usage": {"prompt_tokens": "x"}}'), None, True),
        (Garbage(b'{"content": [], "usage": {"input_tokens": "x"}}'), None, True),
        (CutShort("some text"), None, True),
    ],
)
async def test_a_failure_says_whether_it_may_be_tried_again(
    kind: Any, step: Any, status: int | None, retryable: bool
) -> None:
    async with talking(kind, [step]) as (provider, _):
        with pytest.raises(ModelError) as caught:
            await provider.complete(request())

    error = caught.value
    assert (error.status_code, error.retryable, error.provider) == (status, retryable, "fake")
    assert KEY not in str(error) + repr(error) + str(error.headers)
    assert len(str(error)) < 500
    if status == 429:
        assert error.headers["retry-after"] == "2"


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_stream_that_is_cut_short_fails_after_what_arrived(kind: str) -> None:
    pieces: list[str] = []
    async with talking(kind, [CutShort("one two three", pieces=3)]) as (provider, _):
        with pytest.raises(ModelError) as caught:
            async for delta in provider.stream(request()):
                pieces.append(delta.text)

    assert caught.value.retryable
    assert "".join(pieces).startswith("one")


@contextlib.asynccontextmanager
async def answering(kind: str, raw: bytes) -> AsyncIterator[OpenAICompatible | AnthropicMessages]:
    """Open a client of a server that answers one request with *raw*."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        [length] = re.findall(rb"content-length: (\d+)", head.lower())
        await reader.readexactly(int(length))
        writer.write(raw)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        make = OpenAICompatible if kind == "openai" else AnthropicMessages
        provider = make("fake", f"http://{host}:{port}", Secret(KEY))
        try:
            yield provider
        finally:
            await provider.aclose()


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("openai", "5"),
        ("openai", '{"choices": 5}'),
        ("openai", '{"choices": [{"delta": 5}]}'),
        ("openai", '{"usage": {"prompt_tokens": "x"}}'),
        ("anthropic", "5"),
        ("anthropic", '{"type": "message_start"}'),
        ("anthropic", '{"type": "content_block_delta", "delta": 5}'),
        ("anthropic", '{"type": "message_delta", "usage": {"output_tokens": "x"}}'),
    ],
)
async def test_an_event_of_another_form_is_a_failure_of_the_provider(kind: str, data: str) -> None:
    raw = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: {data}\n\n"
    async with answering(kind, raw.encode()) as provider:
        with pytest.raises(ModelError, match="unexpected form") as caught:
            async for _ in provider.stream(request()):
                pass

    assert caught.value.retryable


WRONG_PARTS = [
    ("openai", {"choices": [{"message": {"content": 5}}]}, "$.choices[0].message.content"),
    ("openai", {"choices": [{"message": {"content": ["a"]}}]}, "$.choices[0].message.content"),
    ("openai", {"choices": []}, "$.choices"),
    ("openai", {"choices": [{}]}, "`message` - at `$.choices[0]`"),
    ("openai", {"choices": [{"message": {}, "finish_reason": 5}]}, "$.choices[0].finish_reason"),
    ("openai", {"choices": [{"message": {}}], "model": 5}, "$.model"),
    (
        "openai",
        {"choices": [{"message": {}}], "usage": {"prompt_tokens": 10**400}},
        "$.usage.prompt_tokens",
    ),
    (
        "openai",
        {"choices": [{"message": {"tool_calls": [{"id": "c", "function": {"name": 5}}]}}]},
        "$.choices[0].message.tool_calls[0].function.name",
    ),
    (
        "openai",
        {
            "choices": [
                {
                    "message": {
                        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {}}}]
                    }
                }
            ]
        },
        "$.choices[0].message.tool_calls[0].function.arguments",
    ),
    ("anthropic", {"content": "text"}, "$.content"),
    ("anthropic", {"content": [{"type": "text", "text": 5}]}, "`text` of the expected type"),
    ("anthropic", {"content": [{"type": "text"}]}, "$.content[0]"),
    (
        "anthropic",
        {"content": [{"type": "tool_use", "id": "c", "name": "f", "input": [1]}]},
        "`input` of the expected type - at `$.content[0]`",
    ),
    ("anthropic", {"content": [{"type": "tool_use", "id": 5, "name": "f"}]}, "`id`"),
    ("anthropic", {"content": [], "stop_reason": {}}, "$.stop_reason"),
    ("anthropic", {"content": [], "usage": {"output_tokens": -1}}, "$.usage.output_tokens"),
]


@pytest.mark.parametrize(("kind", "answer", "part"), WRONG_PARTS)
async def test_a_part_of_another_type_is_named(kind: str, answer: Any, part: str) -> None:
    async with talking(kind, [Garbage(json.dumps(answer).encode())]) as (provider, _):
        with pytest.raises(ModelError, match=f"unexpected form.*{re.escape(part)}") as caught:
            await provider.complete(request())

    assert caught.value.retryable


WRONG_STREAMED_PARTS = [
    ("openai", {"choices": [{"delta": {"content": 5}}]}, "$.choices[0].delta.content"),
    ("openai", {"choices": [5]}, "$.choices[0]"),
    ("openai", {"usage": [1]}, "$.usage"),
    ("anthropic", {"type": 5}, "$.type"),
    ("anthropic", {"type": "content_block_delta", "delta": {"text": 5}}, "$.delta.text"),
    ("anthropic", {"type": "message_start", "message": {"usage": 5}}, "$.message.usage"),
]


@pytest.mark.parametrize(("kind", "event", "part"), WRONG_STREAMED_PARTS)
async def test_a_streamed_part_of_another_type_is_named(kind: str, event: Any, part: str) -> None:
    data = f"data: {json.dumps(event)}\n\n"
    raw = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{data}"
    async with answering(kind, raw.encode()) as provider:
        with pytest.raises(ModelError, match=f"unexpected form.*{re.escape(part)}") as caught:
            async for _ in provider.stream(request()):
                pass

    assert caught.value.retryable


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        ("openai", {"error": {"message": "overloaded"}}),
        ("anthropic", {"type": "error", "error": {"message": "overloaded"}}),
        ("anthropic", {"type": "error", "error": "overloaded"}),
    ],
)
async def test_an_error_in_a_stream_says_the_servers_reason(kind: str, event: Any) -> None:
    data = f"data: {json.dumps(event)}\n\n"
    raw = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n{data}"
    async with answering(kind, raw.encode()) as provider:
        with pytest.raises(ModelError, match=r"the stream failed: .*overloaded"):
            async for _ in provider.stream(request()):
                pass


async def test_a_block_of_an_unknown_kind_is_left_alone() -> None:
    answer = {"content": [{"type": "new", "text": 5, "input": []}, {"type": "text", "text": "hi"}]}
    async with talking("anthropic", [Garbage(json.dumps(answer).encode())]) as (provider, _):
        assert (await provider.complete(request())).text == "hi"


@pytest.mark.parametrize("kind", FORMATS)
async def test_the_status_of_a_failure_counts_whatever_its_body_is(kind: str) -> None:
    raw = b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"[" * 100_000
    async with answering(kind, raw) as provider:
        with pytest.raises(ModelError) as caught:
            await provider.complete(request())

    assert caught.value.status_code == 400
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_slow_answer_times_out_as_retryable(kind: str) -> None:
    async with talking(kind, [Slow(30, Say("late"))], timeout=0.05) as (provider, _):
        with pytest.raises(ModelError, match="in time") as caught:
            await provider.complete(request())

    assert caught.value.retryable


async def test_a_refused_connection_is_retryable() -> None:
    provider = OpenAICompatible("fake", "http://127.0.0.1:1", Secret(""))
    with pytest.raises(ModelError, match="connection failed") as caught:
        await provider.complete(request())
    await provider.aclose()

    assert caught.value.retryable


@pytest.mark.parametrize("kind", FORMATS)
async def test_cancelling_hangs_up(kind: str) -> None:
    async with talking(kind, [Slow(60, Say("late"))]) as (provider, models):
        call = asyncio.create_task(provider.complete(request()))
        while not models.received:
            await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_schema_is_asked_for_in_each_formats_own_way(kind: str) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    step = Say('{"n": 1}') if kind == "openai" else Say(tool_calls=[("answer", {"n": 1})])
    async with talking(kind, [step]) as (provider, models):
        reply = await provider.complete(request(schema=schema))

    assert reply.text.replace(" ", "") == '{"n":1}'
    assert reply.tool_calls == ()
    body = models.received[0].body
    wanted = body["response_format"] if kind == "openai" else body["tool_choice"]
    assert wanted["type"] in ("json_schema", "tool")


def test_a_key_is_never_shown() -> None:
    secret = Secret(KEY)

    assert KEY not in repr(secret) + str(secret) + f"{secret!r}"
    assert secret.hide_in(f"your key {KEY} is bad") == "your key *** is bad"


async def test_the_servers_own_count_of_a_window() -> None:
    async with talking("openai", [Say("a", usage=(5, 5))] * 3) as (provider, models):
        for _ in range(3):
            await provider.complete(request())

    assert models.busiest() == (3, 30)
