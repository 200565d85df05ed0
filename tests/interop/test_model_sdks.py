"""The vendors' own clients against our fake provider: it speaks as they expect.

Run with `make interop`, which installs them beside the tests.
"""

from __future__ import annotations

from typing import Any

import pytest

from harn.testing.fake_provider import Fail, FakeModels, Say

openai = pytest.importorskip("openai", reason="make interop")
anthropic = pytest.importorskip("anthropic", reason="make interop")

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def openai_client(models: FakeModels) -> Any:
    return openai.AsyncOpenAI(api_key="k", base_url=models.openai_url, max_retries=0)


def anthropic_client(models: FakeModels) -> Any:
    return anthropic.AsyncAnthropic(api_key="k", base_url=models.url, max_retries=0)


ASK = [{"role": "user", "content": "hello"}]


async def test_openai_reads_a_whole_answer_and_a_tool_call() -> None:
    script = [Say("hi", usage=(3, 4)), Say(tool_calls=[("weather", {"city": "Rome"})])]
    tool = {"type": "function", "function": {"name": "weather", "parameters": WEATHER}}
    async with FakeModels(script) as models, openai_client(models) as client:
        first = await client.chat.completions.create(model="m", messages=ASK)
        second = await client.chat.completions.create(model="m", messages=ASK, tools=[tool])

    assert first.choices[0].message.content == "hi"
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (3, 4)
    [call] = second.choices[0].message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Rome"}')


async def test_openai_reads_a_stream() -> None:
    async with (
        FakeModels([Say("one two", usage=(1, 2))]) as models,
        openai_client(models) as client,
    ):
        stream = await client.chat.completions.create(
            model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "one two"
    assert chunks[-1].usage.completion_tokens == 2


async def test_openai_understands_the_refusal() -> None:
    async with FakeModels([Fail(429, "slow", 7)]) as models, openai_client(models) as client:
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(model="m", messages=ASK)

    assert caught.value.response.headers["retry-after"] == "7"


async def test_anthropic_reads_a_whole_answer_and_a_tool_call() -> None:
    script = [Say("hi", usage=(3, 4)), Say(tool_calls=[("weather", {"city": "Rome"})])]
    tool = {"name": "weather", "input_schema": WEATHER}
    async with FakeModels(script) as models, anthropic_client(models) as client:
        first = await client.messages.create(model="m", max_tokens=9, messages=ASK)
        second = await client.messages.create(model="m", max_tokens=9, messages=ASK, tools=[tool])

    assert first.content[0].text == "hi"
    assert (first.usage.input_tokens, first.usage.output_tokens) == (3, 4)
    assert second.content[0].input == {"city": "Rome"}


async def test_anthropic_reads_a_stream() -> None:
    async with FakeModels([Say("one two", usage=(1, 2))]) as models:
        async with anthropic_client(models) as client:
            async with client.messages.stream(model="m", max_tokens=9, messages=ASK) as stream:
                text = [piece async for piece in stream.text_stream]
                final = await stream.get_final_message()

    assert text == ["one ", "two"]
    assert final.usage.output_tokens == 2


async def test_anthropic_understands_the_refusal() -> None:
    async with FakeModels([Fail(529, "overloaded")]) as models, anthropic_client(models) as client:
        with pytest.raises(anthropic.APIStatusError) as caught:
            await client.messages.create(model="m", max_tokens=9, messages=ASK)

    assert caught.value.status_code == 529
