"""Cancelled anywhere, nothing leaks; secrets planted anywhere, nothing shows."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import (
    HarnError,
    InvalidOption,
    Runtime,
    SpawnToPool,
    TriggerEvent,
    channel_emit,
    event_log_read,
    topics,
    trigger_fire,
    trigger_list,
    trigger_register,
)
from harn.pools import pool_create
from harn.storage import Store, ask
from harn.telemetry.metrics import Metrics
from harn.testing import fresh_runtime
from harn.triggers import Secrets, Triggers
from harn.triggers.cron import check_schedule
from tests.sweep import sweep


async def register(handler: Any, **options: Any) -> None:
    await trigger_register(
        id="t",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:x"]},
        handler=handler,
        **options,
    )


async def leftovers(runtime: Runtime) -> int:
    def count() -> Any:
        marks = yield ask("trigger_dump_marks")
        inbox = yield ask("trigger_dump_inbox")
        return len(marks) + len(inbox)

    return await runtime.service(Store).run(count)


@pytest.mark.parametrize(
    "options",
    [{}, {"concurrency": {"max": 1}}, {"singleton": True, "concurrency": {"max": 1}}],
    ids=["bare", "slot", "both"],
)
@pytest.mark.parametrize("verb", ["emit", "fire"])
async def test_an_emit_or_fire_cancelled_anywhere_leaves_nothing_held(
    options: dict[str, Any], verb: str
) -> None:
    async def handler(event: TriggerEvent) -> int:
        for _ in range(9):  # longer than an emit waits without a timer
            await asyncio.sleep(0)
        return 1

    async def case() -> None:
        async with fresh_runtime() as runtime:
            await register(handler, **options)
            try:
                await (channel_emit("x", 1) if verb == "emit" else trigger_fire("t", 1))
            finally:
                await runtime.service(Triggers).dispatcher.idle()
                assert await leftovers(runtime) == 0

    assert await sweep(case, leftovers=5) > 4


async def test_S13_a_secret_in_an_error_reaches_no_sink(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    canaries = [f"canary-{n}-0123456789" for n in range(12)]
    for canary in canaries:
        runtime.service(Secrets).register(canary)

    async def leak(event: TriggerEvent) -> None:
        raise RuntimeError(f"could not log in with {' and '.join(canaries)}")

    await register(leak, retry={"max": 2, "backoff": "immediate"})
    with caplog.at_level(logging.DEBUG):
        handle = await trigger_fire("t", {"n": 1})
    stored = [
        event.as_dict()
        for topic in topics.TOPICS
        if "<" not in topic.name
        for event in await event_log_read(topic.name)
    ]

    sinks = [
        str(handle),
        json.dumps(stored),
        caplog.text,
        runtime.service(Metrics).exposition(),
        repr(trigger_list()),
    ]
    assert "***" in str(handle.error)
    for canary in canaries:
        assert all(canary not in sink for sink in sinks)


async def test_S13_payloads_are_no_part_of_audits_and_receipts(runtime: Runtime) -> None:
    await register(lambda event: "ok")
    await channel_emit("x", {"card": "4242-canary"})

    for topic in (topics.CHANNEL_AUDIT, topics.TRIGGER_OUTBOX, topics.TRIGGER_ATTEMPTS):
        records = [event.as_dict() for event in await event_log_read(topic)]
        assert records
        assert "canary" not in json.dumps(records)


ODD_NAMES: list[Any] = [
    "", " ", "../../x", "/etc/x", "a/b", "..", ".", "con", "x" * 300, "a\x00b", "a\nb", "\u2028", "\u202e",  # noqa: E501
    "\ud800", "e\u0301", "😀", "'; DROP TABLE", "%s", "{0}", "$(id)", "<script>", "\x1b[2J", "__proto__",  # noqa: E501
    "default", "queues", "x.claims", None, 5, True, [], {}, 1.5,
]  # fmt: skip


@pytest.mark.parametrize("name", ODD_NAMES, ids=range(len(ODD_NAMES)))
async def test_G14_an_odd_name_is_taken_or_refused_by_name(storage_url: str, name: Any) -> None:
    async with Runtime(storage=storage_url):
        seen: list[Any] = []
        for option in ("id", "channel"):
            try:
                await trigger_register(
                    id=name if option == "id" else "t",
                    kind="channel.emit",
                    provider="channel",
                    match={"events": [f"channel:{name}"]},
                    handler=lambda event: seen.append(event.id),
                )
                await channel_emit(name, {"n": name}, id=name)
            except HarnError:
                continue
            assert seen


@settings(deadline=None, max_examples=1000)
@given(st.text(alphabet="0123456789*/,-#LW SUNMONJAN?@²٣\n\0", max_size=40))
def test_G14_no_text_makes_a_schedule_fail_otherwise(text: str) -> None:
    try:
        schedule = check_schedule(text)
    except InvalidOption:
        return
    assert schedule.next(0) is not None


@settings(deadline=None, max_examples=400)
@given(
    st.dictionaries(
        st.sampled_from(
            ["throttle", "rate_limit", "debounce", "batch", "singleton", "concurrency", "retry"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
            lambda inner: st.dictionaries(
                st.sampled_from(["max", "period", "key", "size", "timeout", "backoff", "x"]),
                inner,
                max_size=3,
            ),
            max_leaves=5,
        ),
        max_size=3,
    )
)
async def test_G14_no_options_make_a_registration_fail_otherwise(options: dict[str, Any]) -> None:
    async with fresh_runtime():
        try:
            await register(print, **options)
        except InvalidOption:
            assert trigger_list() == []


async def test_O1_the_same_program_leaves_the_same_receipts() -> None:
    async def program() -> list[Any]:
        async with fresh_runtime(seed=7):
            await pool_create(name="work", max_concurrent=3)  # a place each: no race for one
            await register(SpawnToPool("work", lambda event: lambda: event.id))
            for n in range(3):
                await channel_emit("x", {"n": n})
            return [event.as_dict() for event in await event_log_read(topics.CHANNEL_AUDIT)]

    first, second = await program(), await program()

    assert first == second
    assert len(first) == 6


async def test_S13_spans_carry_ids_and_no_payloads(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exported, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    await register(lambda event: "the canary's answer")
    await channel_emit("x", {"card": "a canary"})
    spans = exported.get_finished_spans()
    provider.shutdown()

    assert "trigger.dispatch t" in [span.name for span in spans]
    assert all("canary" not in span.to_json() for span in spans)
