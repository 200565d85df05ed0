"""Each model call leaves a record of what it used and for whom; llm_usage adds them up."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harn import (
    InvalidOption,
    Job,
    ManifestError,
    ModelError,
    RetryLater,
    Runtime,
    SchedulerPolicy,
    agent_loop,
    drain,
    event_log_emit,
    event_log_read,
    llm_call,
    llm_price,
    llm_slot,
    llm_stream,
    llm_usage,
    pool_create,
    spawn,
    with_rate_limit,
    worker_queue,
)
from harn.llm.messages import Usage
from harn.llm.usage import UsageSums
from harn.storage import Event
from harn.telemetry.metrics import Metrics
from harn.testing import FakeClock
from harn.testing.fake_provider import CutShort, Fail, FakeModels, Garbage, Say, Slow
from tests.llm.served_models import FORMATS, models, provider_at

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARN_LLM_RATE_LIMIT_DURABLE", "0")


async def calls() -> list[dict[str, Any]]:
    return [event.payload for event in await event_log_read("llm.usage")]


async def test_a_call_leaves_a_record_of_what_it_used_and_for_whom(storage_url: str) -> None:
    options = {"tenant_id": "acme", "agent_session_id": "s-7", "storage": storage_url}
    async with models([Say("a secret answer", usage=(1000, 500))], **options):
        llm_price("fake", "m-1", input_usd_per_million=2, output_usd_per_million=8)
        await llm_call("a secret question")
        [call] = await calls()

    assert {name: call[name] for name in call if name not in ("waited_ms", "duration_ms")} == {
        "tenant_id": "acme",
        "queue": None,
        "job_id": None,
        "pool": None,
        "pool_task_id": None,
        "agent_session_id": "s-7",
        "provider": "fake",
        "model": "m-1",
        "input_tokens": 1000,
        "output_tokens": 500,
        "cached_tokens": 0,
        "cost_usd": 0.006,
        "cached": False,
        "retried": False,
        "failed": False,
        "error": None,
        "estimated": False,
    }
    assert "secret" not in str(call)


async def test_records_name_the_job_or_pool_task_that_called() -> None:
    async with models(lambda body: Say("ok", usage=(1, 1))):
        queue = worker_queue("reviews")
        receipt = await queue.enqueue({"pr": 1}, tenant_id="acme")

        async def review(job: Any) -> None:
            await spawn(lambda: agent_loop("review"))

        await drain("reviews", review)
        pool = await pool_create(name="agents")
        task = await pool.submit(lambda: llm_call("hello"))
        await task
        by_job, by_pool = await calls()

    assert (by_job["queue"], by_job["job_id"]) == ("reviews", str(receipt.job_id))
    assert (by_job["tenant_id"], by_job["pool"], by_job["pool_task_id"]) == ("acme", None, None)
    assert (by_pool["pool"], by_pool["pool_task_id"]) == ("agents", task.id)
    assert (by_pool["queue"], by_pool["job_id"]) == (None, None)


async def test_each_request_has_a_record_and_failed_and_retried_ones_say_so() -> None:
    script = [Fail(500), Garbage(), Say("ok", usage=(3, 4)), Fail(401)]
    async with models(script) as server:
        await llm_call("hello", backoff_ms=0)
        with pytest.raises(ModelError):
            await llm_call("hello", backoff_ms=0)
        found = await calls()
        [total] = await llm_usage(by=["model"])

    assert len(found) == len(server.received) == 4
    assert [each["failed"] for each in found] == [True, True, False, True]
    assert [each["retried"] for each in found] == [False, True, True, False]
    assert [each["error"] for each in found] == ["ModelError", "ModelError", None, "ModelError"]
    assert [each["output_tokens"] for each in found] == [0, 0, 4, 0]
    assert (total.calls, total.failed, total.retried, total.input_tokens) == (4, 3, 2, 3)


async def test_streams_leave_records_too_also_broken_ones() -> None:
    async with models([Say("one two", usage=(5, 2)), CutShort("one two three", pieces=2)]):
        async for _ in llm_stream("count"):
            pass
        with pytest.raises(ModelError):
            async for _ in llm_stream("count"):
                pass
        whole, broken = await calls()

    assert (whole["input_tokens"], whole["output_tokens"], whole["failed"]) == (5, 2, False)
    assert (broken["failed"], broken["error"]) == (True, "ModelError")
    assert broken["output_tokens"] > 0


async def test_a_cancelled_call_leaves_a_record() -> None:
    async with models(lambda body: Slow(600)) as server:
        asking = spawn(llm_call, "hello")
        while not server.received:
            await spawn(lambda: None)
        asking.cancel()
        await asking._join()
        [call] = await calls()

    assert (call["failed"], call["error"]) == (True, "CancelledError")


async def test_a_slot_of_another_client_leaves_a_record_if_it_counts_tokens() -> None:
    async with Runtime():
        async with llm_slot("acme", "big-2", input_tokens=900, output_tokens=500) as slot:
            await slot.settle(input_tokens=870, output_tokens=120, cached_tokens=800)
        async with llm_slot("acme", "big-2", input_tokens=900, output_tokens=500):
            pass
        await with_rate_limit("acme", lambda: None)
        async with llm_slot("acme"):
            pass
        settled, forgotten = await calls()

    assert (settled["input_tokens"], settled["output_tokens"]) == (870, 120)
    assert (settled["cached_tokens"], settled["cached"], settled["estimated"]) == (800, True, False)
    assert (forgotten["input_tokens"], forgotten["estimated"]) == (900, True)


async def test_records_survive_an_orderly_stop(lasting_url: str) -> None:
    async with FakeModels(lambda body: Say("ok", usage=(10, 1))) as server:
        for tenant in ("acme", "zeta"):
            async with Runtime(storage=lasting_url, tenant_id=tenant), provider_at(server):
                await llm_call("hello")
                await llm_call("hello")

    async with Runtime(storage=lasting_url):
        totals = await llm_usage()

    assert [(each.tenant, each.calls, each.input_tokens) for each in totals] == [
        ("acme", 2, 20),
        ("zeta", 2, 20),
    ]


@pytest.mark.parametrize("kind", FORMATS)
async def test_tokens_that_came_from_the_providers_cache_cost_less(kind: str) -> None:
    usage = {
        "openai": {
            "prompt_tokens": 1000,
            "completion_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": 900},
        },
        "anthropic": {"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 0},
    }[kind]
    answer = {
        "openai": {"choices": [{"message": {"content": "hi"}}], "usage": usage},
        "anthropic": {"content": [{"type": "text", "text": "hi"}], "usage": usage},
    }[kind]
    async with models([Garbage(json.dumps(answer).encode())], kind):
        llm_price(
            "fake",
            "m-1",
            input_usd_per_million=1,
            output_usd_per_million=1,
            cached_input_usd_per_million=0.1,
        )
        result = await llm_call("hello")
        [call] = await calls()

    assert result.usage == Usage(1000, 0, 900)
    assert (call["cached"], call["cost_usd"]) == (True, pytest.approx((100 + 90) / 1e6))


async def test_an_unknown_price_is_no_price_of_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("providers.toml").write_text(
        "[providers.openai.models.known]\noutput_usd_per_million = 3\n"
        "[providers.openai.models.limited]\nrpm = 60\n"
    )
    async with Runtime() as runtime:
        for model in ("known", "limited"):
            async with llm_slot("openai", model) as slot:
                await slot.settle(input_tokens=0, output_tokens=1_000_000)
        known, limited = await llm_usage(by=["model"])
        text = runtime.service(Metrics).exposition()

    assert (known.cost_usd, known.unpriced) == (3.0, 0)
    assert (limited.cost_usd, limited.unpriced) == (None, 1)
    assert "harn_llm_cost_usd_total{" not in text


@pytest.mark.parametrize("given", ["-1", '"free"', "nan", "true"])
async def test_a_wrong_price_in_the_file_is_named(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("providers.toml").write_text(f"[providers.x.models.m]\ninput_usd_per_million = {given}\n")
    async with Runtime():
        with pytest.raises(ManifestError, match="input_usd_per_million is a number"):
            llm_price("x", "m")


HUGE = pytest.param(10**400, id="huge")


@pytest.mark.parametrize("given", [-1, "1", True, float("nan"), float("inf"), HUGE])
async def test_a_wrong_price_is_refused_by_name(given: Any) -> None:
    async with Runtime():
        with pytest.raises(InvalidOption, match="output_usd_per_million"):
            llm_price("x", "m", output_usd_per_million=given)


async def spend() -> None:
    async with llm_slot("acme", "m") as slot:
        await slot.settle(input_tokens=10, output_tokens=1)


async def test_usage_is_grouped_by_what_is_asked_for() -> None:
    sums = UsageSums(("tenant", "model", "queue", "day"))
    base = {"tenant_id": "acme", "model": "m", "queue": None, "input_tokens": 1}
    for day, tenant, queue in [(0, "b", None), (0, "a", "q"), (1, "a", "q"), (1, "a", "q")]:
        call = {**base, "tenant_id": tenant, "queue": queue}
        sums.add(Event(1, "llm.usage", "llm_called", call, {}, day * DAY_MS + 5))

    shown = [total.as_dict() for total in sums.totals()]

    assert [(each["tenant"], each["queue"], each["day"], each["calls"]) for each in shown] == [
        ("a", "q", "1970-01-01", 1),
        ("a", "q", "1970-01-02", 2),
        ("b", None, "1970-01-01", 1),
    ]
    assert "provider" not in shown[0]


async def test_usage_since_a_time_counts_exactly_what_came_after(storage_url: str) -> None:
    clock = FakeClock("2026-01-01T00:00:00Z")
    async with Runtime(storage=storage_url, clock=clock):
        for _ in range(30):
            await spend()
            await clock.advance("1h")

        for hours in (1, 2, 7, 29, 30, 90):
            [total] = await llm_usage(since=f"{hours}h")
            assert total.calls == min(hours, 30)
        [total] = await llm_usage(since=datetime(2026, 1, 1, 10, tzinfo=UTC))
        assert total.calls == 20
        assert await llm_usage(since="0s") == []
        assert [each.day for each in await llm_usage(by=["day"])] == ["2026-01-01", "2026-01-02"]


async def test_usage_since_a_time_does_not_read_what_is_far_older() -> None:
    clock = FakeClock("2026-01-01T00:00:00Z")
    async with Runtime(clock=clock) as runtime:
        for _ in range(200):
            await spend()
            await clock.advance("1h")
        streamed: list[int] = []
        stream = runtime.event_log.stream

        def watched(topic: str, after: int = 0) -> Any:
            streamed.append(after)
            return stream(topic, after)

        runtime.event_log.stream = watched  # type: ignore[method-assign]
        [total] = await llm_usage(since="5h")

    assert total.calls == 5
    assert streamed[0] >= 190


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"by": "tenant"}, "by"),
        ({"by": ["tennant"]}, "did you mean 'tenant'"),
        ({"by": ["day", "day"]}, "each once"),
        ({"since": "soon"}, "since"),
        ({"since": datetime(2026, 1, 1)}, "time zone"),
    ],
)
async def test_bad_questions_are_refused_by_name(options: Any, named: str) -> None:
    async with Runtime():
        with pytest.raises(InvalidOption, match=named):
            await llm_usage(**options)


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("note", 5),
        ("note", {"text": "the models changed today"}),
        ("llm_called", {"input_tokens": "many"}),
        ("llm_called", {"input_tokens": 1, "cost_usd": 10**400}),
    ],
)
async def test_a_record_of_no_model_call_is_not_counted(kind: str, payload: Any) -> None:
    async with Runtime():
        await event_log_emit("llm.usage", kind, payload)
        async with llm_slot("acme", input_tokens=7) as slot:
            await slot.settle(input_tokens=7)

        [total] = await llm_usage(by=())

    assert (total.calls, total.input_tokens) == (1, 7)


async def test_a_record_that_cannot_be_written_fails_no_call(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with models([Say("ok")], tenant_id="\udc80"):
        assert (await llm_call("hello")).text == "ok"
        assert await calls() == []
    assert "dropped" in caplog.text


async def test_a_reply_from_a_recorded_step_is_not_counted_again() -> None:
    attempts = 0

    async def review(job: Any) -> str:
        nonlocal attempts
        attempts += 1
        text = (await agent_loop("review")).text
        if attempts == 1:
            raise RetryLater(0)
        return text

    async with models(lambda body: Say("fine", usage=(10, 1))) as server:
        await worker_queue("reviews").enqueue(1)
        report = await drain("reviews", review)
        [total] = await llm_usage()

    assert (attempts, report.acked) == (2, 1)
    assert (total.calls, total.input_tokens, len(server.received)) == (1, 10, 1)


async def test_the_tokens_of_a_jobs_model_calls_are_what_it_costs() -> None:
    policy = SchedulerPolicy(strategy="drr", charge="cost", quantum=100)

    async def handler(job: Job) -> None:
        await spawn(llm_call, "a question")
        async with llm_slot("elsewhere", "m-2", input_tokens=9) as slot:
            await slot.settle(input_tokens=30, output_tokens=7)
        if job.attempts == 1:
            raise RetryLater(0)

    async with models([Say("so", usage=(1000, 500)), Say("so", usage=(20, 5))]):
        await worker_queue("reviews").enqueue("a", cost=5)
        await drain("reviews", handler, policy=policy)
        claims = await event_log_read("worker.reviews.claims")

    told = {event.kind: event.payload for event in claims}
    assert told["job_failed"]["cost"] == 1537
    assert told["job_acked"]["cost"] == 62
    assert told["job_acked"]["charged_millionths"] == 62_000_000


async def test_a_job_without_model_calls_costs_what_was_expected() -> None:
    async with Runtime():
        await worker_queue("reviews").enqueue("a", cost=5)
        await drain("reviews", lambda job: None)
        claims = await event_log_read("worker.reviews.claims")

    assert "cost" not in claims[-1].payload
