"""llm_call, llm_stream and agent_loop against a real HTTP server, inside limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harn import (
    DeadlineExceeded,
    InvalidOption,
    ManifestError,
    ModelError,
    Runtime,
    agent_loop,
    deadline,
    event_log_read,
    llm_call,
    llm_provider,
    llm_rate_limit,
    llm_stream,
    pool_create,
    scope,
    spawn,
)
from harn.clock import sleep_until
from harn.llm.anthropic import AnthropicMessages
from harn.llm.http import Secret
from harn.llm.messages import Delta, Message, ModelReply, ModelRequest, ToolCall, Usage
from harn.llm.openai import OpenAICompatible
from harn.telemetry.metrics import Metrics
from harn.testing import FakeClock, fresh_runtime
from harn.testing.fake_provider import CutShort, Fail, FakeModels, Garbage, Say, Slow
from tests.sweep import sweep

KEY = "sk-canary-0123456789"
FORMATS = ["openai", "anthropic"]


@contextlib.asynccontextmanager
async def at_work(
    script: Any = None, kind: str = "openai", tmp_path: Path | None = None, **options: Any
) -> AsyncIterator[tuple[FakeModels, Runtime]]:
    """A runtime whose provider `fake` is the scripted server; backoff takes no time."""
    if tmp_path is not None:
        options["state_dir"] = tmp_path
    async with FakeModels(script) as models, Runtime(**options) as runtime:
        client = (
            OpenAICompatible("fake", models.openai_url, Secret(KEY))
            if kind == "openai"
            else AnthropicMessages("fake", models.url, Secret(KEY))
        )
        llm_provider("fake", client, default_model="m-1")
        try:
            yield models, runtime
        finally:
            await client.aclose()


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_LLM_RATE_LIMIT_DURABLE", "0")


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_call_answers_with_text_usage_and_names(kind: str) -> None:
    async with at_work([Say("hi", usage=(12, 3))], kind):
        result = await llm_call("hello", "be brief", temperature=0.2)

    assert (result.text, result.usage, result.provider) == ("hi", Usage(12, 3), "fake")
    assert result.as_dict()["model"] == "m-1"


@pytest.mark.parametrize("kind", FORMATS)
async def test_what_may_succeed_later_is_tried_again(kind: str) -> None:
    script = [Fail(500), Fail(429, retry_after=0.001), Garbage(), Say("at last")]
    async with at_work(script, kind) as (models, _):
        result = await llm_call("hello", backoff_ms=0)

    assert result.text == "at last"
    assert len(models.received) == 4


async def test_what_cannot_succeed_is_not_tried_again() -> None:
    async with at_work([Fail(401, f"bad key {KEY}")]) as (models, _):
        with pytest.raises(ModelError) as caught:
            await llm_call("hello", backoff_ms=0)

    assert caught.value.status_code == 401
    assert KEY not in str(caught.value)
    assert len(models.received) == 1


async def test_retries_end() -> None:
    async with at_work(lambda body: Fail(503)) as (models, _):
        with pytest.raises(ModelError):
            await llm_call("hello", backoff_ms=0, max_retries=2)

    assert len(models.received) == 3


async def test_limits_are_in_front_of_every_call_and_settled_to_what_was_used() -> None:
    async with at_work(lambda body: Say("ok", usage=(10, 10))) as (models, _):
        llm_rate_limit("fake", tpm=400)
        # Each call reserves over 100 by estimate but uses 20: settled, twenty fit into a minute.
        async with deadline("20s"):
            for _ in range(15):
                await llm_call("hello", max_tokens=100)

    assert len(models.received) == 15


async def test_a_call_that_is_refused_has_used_no_tokens() -> None:
    async with at_work(lambda body: Fail(400)) as (models, _):
        llm_rate_limit("fake", tpm=400)
        # Each call reserves over 100 by estimate: the fourth would have to wait for a minute.
        async with deadline("20s"):
            for _ in range(6):
                with pytest.raises(ModelError):
                    await llm_call("hello", max_tokens=100)

    assert len(models.received) == 6


class Point(msgspec.Struct):
    x: int
    y: int


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_structured_answer_is_checked_and_built(kind: str) -> None:
    good = (
        Say('{"x": 1, "y": 2}')
        if kind == "openai"
        else Say(tool_calls=[("answer", {"x": 1, "y": 2})])
    )
    async with at_work([good], kind):
        result = await llm_call("where?", schema=Point)

    assert result.value == Point(1, 2)


async def test_a_bad_structured_answer_is_sent_back_once_to_be_mended() -> None:
    script = [Say('{"x": 1}', usage=(5, 5)), Say('{"x": 1, "y": 2}', usage=(7, 7))]
    async with at_work(script) as (models, _):
        result = await llm_call("where?", schema=Point)

    assert result.value == Point(1, 2)
    assert result.usage == Usage(12, 12)
    assert "does not fit" in models.received[1].body["messages"][-1]["content"]


async def test_a_structured_answer_that_stays_bad_is_an_error() -> None:
    async with at_work(lambda body: Say("no json here")) as (models, _):
        with pytest.raises(ModelError, match="two answers did not fit"):
            await llm_call("where?", schema={"type": "object"})

    assert len(models.received) == 2


@pytest.mark.parametrize("kind", FORMATS)
async def test_a_stream_is_a_channel_of_pieces(kind: str) -> None:
    async with at_work([Say("one two three")], kind):
        pieces = [piece async for piece in llm_stream("count")]

    assert pieces == ["one ", "two ", "three"]


async def test_leaving_a_stream_early_hangs_up() -> None:
    words = " ".join(str(n) for n in range(5000))
    async with at_work([Say(words)]) as (models, _):
        async with scope():
            async for _ in llm_stream("count"):
                break
        while models.open_now:
            await asyncio.sleep(0.001)

    assert len(models.received) == 1


async def test_a_streams_failure_comes_out_after_its_pieces() -> None:
    pieces: list[str] = []
    async with at_work([CutShort("one two three", pieces=2)]):
        with pytest.raises(ModelError):
            async for piece in llm_stream("count"):
                pieces.append(piece)

    assert pieces == ["one ", "two "]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def explode() -> None:
    """Fail."""
    raise RuntimeError("boom")


@pytest.mark.parametrize("kind", FORMATS)
async def test_an_agent_runs_its_tools_until_it_is_done(kind: str) -> None:
    script = [
        Say("let me see", tool_calls=[("add", {"a": 2, "b": 3}), ("multiply", {"a": 4, "b": 5})]),
        Say(tool_calls=[("explode", {}), ("nothing", {}), ("add", {"a": "x"})]),
        Say("5 and 20"),
    ]
    async with at_work(script, kind) as (_, _runtime):
        result = await agent_loop("2+3 and 4*5?", tools=[add, multiply, explode])
        events = await event_log_read("agents.lifecycle")

    assert (result.text, result.done, result.iterations) == ("5 and 20", True, 3)
    assert result.tool_calls == 5
    told = [(each.text, each.is_error) for each in result.messages if each.role == "tool"]
    assert told[:2] == [("5", False), ("20", False)]
    assert [failed for _, failed in told[2:]] == [True, True, True]
    assert "boom" in told[2][0]
    kinds = [event.kind for event in events]
    assert kinds.count("agent_tool_called") == 5
    assert (kinds[0], kinds[-1]) == ("agent_started", "agent_finished")
    assert "2+3" not in str([event.payload for event in events])


async def test_an_agent_that_never_finishes_runs_out_of_turns() -> None:
    async with at_work(lambda body: Say(tool_calls=[("add", {"a": 1, "b": 1})])):
        result = await agent_loop("loop", tools=[add], max_iterations=3)

    assert (result.stop, result.iterations, result.done) == ("max_iterations", 3, False)


async def test_agents_work_in_pools_and_under_deadlines() -> None:
    async with at_work(lambda body: Slow(30, Say("late"))) as (models, _):
        pool = await pool_create(name="agents", max_concurrent=2)
        with pytest.raises(DeadlineExceeded):
            async with deadline("50ms"):
                await (await pool.submit(lambda: agent_loop("hello")))
        await pool.close(cancel=True)
        while models.open_now > 2:
            await asyncio.sleep(0.001)


async def test_cancelling_an_agent_anywhere_leaves_nothing_running() -> None:
    class Scripted:
        def __init__(self) -> None:
            self.turn = 0

        async def complete(self, request: ModelRequest) -> ModelReply:
            await asyncio.sleep(0)
            self.turn += 1
            calls = (ToolCall("c", "multiply", '{"a":1,"b":2}'),) if self.turn % 2 else ()
            return ModelReply("x", Usage(1, 1), "m", calls)

        async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
            yield Delta(text="x")

        def count_tokens(self, request: ModelRequest) -> int:
            return 1

    async with Runtime():
        llm_provider("scripted", Scripted(), default_model="m")

        async def case() -> None:
            llm_provider("scripted", Scripted(), default_model="m")
            await agent_loop("go", tools=[multiply])

        assert await sweep(case, leftovers=20) > 5


async def test_calls_are_counted_and_nothing_said_is_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with at_work([Fail(500), Say("ok", usage=(3, 4))]) as (_, runtime):
            await llm_call("a secret question", backoff_ms=0)
            text = runtime.service(Metrics).exposition()

    labels = 'direction="output",model="m-1",provider="fake"'
    assert f"harn_llm_tokens_total{{{labels}}} 4.0" in text
    assert 'outcome="ok"' in text
    assert 'outcome="ModelError"' in text
    assert KEY not in caplog.text + text
    assert "a secret question" not in text


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"provider": "fak"}, "did you mean 'fake'"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_retries": -1}, "max_retries"),
        ({"schema": 5}, "schema"),
        ({"system": 5}, "system"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 10**400}, "temperature"),
        ({"tools": [5]}, "tools"),
        ({"extra": 5}, "extra"),
        ({"provider": "openai"}, "default_model"),
    ],
)
async def test_bad_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    async with at_work():
        with pytest.raises(InvalidOption, match=named):
            await llm_call("hello", **options)


@pytest.mark.parametrize("prompt", [[], 5, ["x"], None, [Message("user", 5)]])  # type: ignore[arg-type]
async def test_a_prompt_is_text_or_messages(prompt: Any) -> None:
    async with at_work():
        with pytest.raises(InvalidOption, match="prompt"):
            await llm_call(prompt)


@pytest.mark.parametrize(
    "options", [{"extra": {"x": object()}}, {"system": "\udc80"}, {"prompt": "\udc80"}]
)
async def test_a_request_that_no_json_can_hold_is_a_failed_call(options: dict[str, Any]) -> None:
    async with at_work() as (models, _):
        with pytest.raises(ModelError, match="the request cannot be written as JSON") as caught:
            await llm_call(**{"prompt": "hello", **options})

    assert not caught.value.retryable
    assert models.received == []


async def test_a_conversation_may_be_given() -> None:
    talk = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    async with at_work() as (models, _):
        assert (await llm_call(talk)).text == "c"
    assert len(models.received[0].body["messages"]) == 3


async def test_a_provider_needs_three_methods() -> None:
    async with Runtime():
        with pytest.raises(InvalidOption, match="complete, stream and count_tokens"):
            llm_provider("x", object())  # type: ignore[arg-type]


async def test_providers_come_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOCAL_KEY", KEY)
    async with FakeModels([Say("from the file", usage=(1_000_000, 0))]) as models:
        (tmp_path / "providers.toml").write_text(
            f"""
            [providers.local]
            base_url = "{models.openai_url}"
            api_key_env = "LOCAL_KEY"
            default_model = "small"
            [providers.local.models.small]
            input_usd_per_million = 2.5
            """
        )
        async with Runtime() as runtime:
            assert (await llm_call("hello")).text == "from the file"
            text = runtime.service(Metrics).exposition()

    assert models.received[0].headers["authorization"] == f"Bearer {KEY}"
    assert "2.5" in text


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('base_ulr = "http://x"', "did you mean 'base_url'"),
        ('base_url = "ftp://x"', "base_url"),
        ('base_url = "http://x"\nkind = "grpc"', "kind"),
        ('base_url = "http://x"\ntimeout = "soon"', "timeout"),
        ('base_url = "http://x"\nmodels = 5', "models"),
        ('base_url = "http://x"\nkind = ["openai"]', "kind"),
        ('base_url = "http://x"\napi_key_env = 5', "api_key_env=5: a text"),
        ('base_url = "http://x"\ndefault_model = 5', "default_model=5: a text"),
        ("base_url = ", "providers.toml"),
    ],
)
async def test_a_mistake_in_the_file_is_named(
    table: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "providers.toml").write_text(f"[providers.local]\n{table}\n")

    async with Runtime():
        with pytest.raises(ManifestError, match=said):
            await llm_call("hello", provider="local", model="m")


async def test_two_calls_at_once_respect_concurrency() -> None:
    async with at_work(lambda body: Slow(0.01, Say("ok"))) as (models, _):
        llm_rate_limit("fake", concurrency=2)
        async with scope():
            for _ in range(8):
                spawn(llm_call, "hello")

    assert models.most_open == 2


def test_a_call_is_a_genai_span_without_what_was_said() -> None:
    import subprocess
    import sys

    code = """
import os
os.environ["HARN_LLM_RATE_LIMIT_DURABLE"] = "0"
import asyncio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from harn import Runtime, llm_call, llm_provider
from harn.llm.openai import OpenAICompatible
from harn.llm.http import Secret
from harn.testing.fake_provider import FakeModels, Say

exporter = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

async def main():
    async with FakeModels([Say("an answer", usage=(3, 4))]) as models:
        async with Runtime(tenant_id="acme", workflow_id="nightly"):
            client = OpenAICompatible("fake", models.openai_url, Secret("sk-canary"))
            llm_provider("fake", client, default_model="m-1")
            await llm_call("a question")
            await client.aclose()

asyncio.run(main())
[span] = exporter.get_finished_spans()
shown = dict(span.attributes)
assert span.name == "chat m-1", span.name
assert shown["gen_ai.provider.name"] == "fake"
assert shown["gen_ai.usage.input_tokens"] == 3
assert shown["gen_ai.usage.output_tokens"] == 4
assert shown["harn.tenant_id"] == "acme"
assert shown["harn.submitted_by"] == "nightly"
for value in map(str, shown.values()):
    assert not any(word in value for word in ("question", "answer", "canary")), value
print("ok")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.strip() == "ok", done.stderr


class Dawdling:
    """A provider that waits for its connection, in the clock's time, and then is sent to."""

    def __init__(self, clock: FakeClock, waits: float) -> None:
        self.clock, self.waits, self.sent = clock, waits, 0

    async def _send(self, request: ModelRequest) -> None:
        await sleep_until(self.clock, self.clock.monotonic() + self.waits)
        assert request.sending is not None
        await request.sending()
        self.sent += 1

    async def complete(self, request: ModelRequest) -> ModelReply:
        await self._send(request)
        return ModelReply("x", Usage(1, 1), "m")

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        await self._send(request)
        yield Delta(text="x")

    def count_tokens(self, request: ModelRequest) -> int:
        return 1


async def one_call() -> None:
    await llm_call("hello")


async def one_stream() -> None:
    async for _ in llm_stream("hello"):
        pass


@pytest.mark.parametrize("call", [one_call, one_stream])
async def test_a_call_that_waits_for_its_connection_counts_from_its_sending(call: Any) -> None:
    clock = FakeClock(0, autojump=True)
    async with fresh_runtime(clock=clock):
        slow = Dawdling(clock, 50.0)
        llm_provider("slow", slow, default_model="m")
        llm_rate_limit("slow", rpm=1)

        await call()
        await call()

    assert slow.sent == 2
    assert clock.monotonic() >= 50 + 60 + 50
