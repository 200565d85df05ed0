"""Uses of harn that mypy and pyright must accept, with the types that they must find.

Nothing here runs: `make types` reads it, and CI. Uses that both must refuse are in `wrong_uses.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, assert_type

import harn
from harn import Channel, Duration, Err, Job, Mailbox, Ok, PoolTask, SharedCell, TaskSnapshot


@dataclass
class Review:
    """A structured answer of a model."""

    verdict: str


async def fetch(url: str, retries: int = 3) -> bytes:
    return url.encode() * retries


def count(text: str) -> int:
    return len(text)


async def nothing() -> None: ...


class Service:
    async def handle(self, job: Job) -> str:
        return str(job.payload)

    async def __call__(self, n: int) -> float:
        return n / 2


@harn.durable
async def double(n: int, /) -> int:
    return 2 * n


@harn.durable(name="typed:report", retry=harn.RetryPolicy(), timeout="30s")
def report(customer: str, *, short: bool = False) -> dict[str, int]:
    return {customer: int(short)}


def running() -> None:
    assert_type(harn.run(nothing), None)
    assert_type(harn.run(fetch, "a"), bytes)
    assert_type(harn.run(fetch, "a", 2), bytes)
    assert_type(harn.run(count, "a"), int)
    assert_type(harn.run(Service(), 1), float)
    assert_type(harn.run(partial(fetch, "a", retries=1)), bytes)
    assert_type(harn.run(lambda: fetch("a")), bytes)
    assert_type(harn.run(fetch, "a", shutdown_timeout="5s", storage="memory://", seed=7), bytes)
    with harn.run_in_thread(tenant_id="acme", state_dir=".harn") as runtime:
        assert_type(runtime, harn.Runtime)
        assert_type(harn.from_thread(fetch, "a"), bytes)
        assert_type(harn.from_thread(count, "a"), int)
        assert_type(harn.from_thread(harn.current_runtime), harn.Runtime)
        assert_type(harn.from_thread(harn.spawn, nothing), harn.TaskHandle[None])
        assert_type(harn.from_thread(harn.worker_queue("q").summary), harn.QueueSummary)
        assert_type(harn.from_thread(harn.sync_gate_acquire, "k", 3, "1s"), harn.Permit | None)


async def context() -> None:
    assert_type(harn.runtime_context().task_id, str)
    assert_type(harn.runtime_context().tenant_id, str | None)
    assert_type(harn.runtime_context_values(), dict[str, Any])
    assert_type(harn.unsettled_state(), harn.UnsettledState)
    async with harn.Runtime(seed="x") as runtime:
        assert_type(runtime, harn.Runtime)
        await runtime.backup("copy.sqlite")
    await harn.sleep(0.5)
    await harn.sleep(timedelta(seconds=1))
    how_long: Duration = "250ms"
    async with harn.deadline(how_long):
        pass


async def tasks() -> None:
    handle = harn.spawn(fetch, "a")
    assert_type(handle, harn.TaskHandle[bytes])
    assert_type(await handle, bytes)
    assert_type(await handle.wait(), bytes)
    assert_type(handle.task_id, str)
    assert_type(handle.done(), bool)
    assert_type(harn.spawn(count, "a", name="n", isolation="process"), harn.TaskHandle[int])
    assert_type(harn.spawn(lambda: 3), harn.TaskHandle[int])
    async with harn.scope() as scope:
        assert_type(scope.spawn(fetch, "a", 2), harn.TaskHandle[bytes])
        scope.defer(print, "bye")
        harn.defer(nothing)
    assert_type(harn.owned(handle), harn.TaskHandle[bytes])
    assert_type(harn.disown(handle), harn.TaskHandle[bytes])
    await harn.drop(handle)
    assert_type(await harn.cancel_graceful(handle, "1s"), Ok[bytes] | Err[BaseException])
    assert_type(await harn.wait_agent(handle), bytes)
    assert_type(await harn.wait_agent([handle, handle]), list[bytes])
    assert_type(await harn.wait_agent(asyncio.ensure_future(fetch("a"))), bytes)
    assert_type(await harn.wait_agent([fetch("a"), fetch("b")]), list[bytes])
    assert_type(harn.is_cancelled(), bool)
    assert_type(await asyncio.wait_for(handle, 1), bytes)


async def parallel() -> None:
    assert_type(await harn.parallel(3, lambda n: n * 2), list[int])
    assert_type(await harn.parallel_each(["a"], fetch), list[bytes])
    assert_type(await harn.parallel_each(["a"], count, 4, isolation="thread"), list[int])
    settled = await harn.parallel_settle(["a"], count)
    assert_type(settled, harn.Settled[int])
    for outcome in settled.results:
        if harn.is_err(outcome):
            assert_type(outcome, Err[BaseException])
        else:
            assert_type(outcome, Ok[int])
    async for value in harn.parallel_each_stream(["a"], fetch):
        assert_type(value, bytes)
    async with harn.parallel_each_stream(["a"], count, 2) as stream:
        async for size in stream:
            assert_type(size, int)
    assert_type(await harn.parallel_race(["a"], fetch), bytes)
    assert_type(await harn.retry(3, nothing), None)
    assert_type(await harn.retry(3, lambda: count("a")), int | None)
    assert_type(await harn.retry(3, lambda: fetch("a"), reraise=True, backoff_ms=5), bytes)


def outcomes(result: Ok[int] | Err[str]) -> int:
    if harn.is_ok(result):
        assert_type(result, Ok[int])
        return result.value
    assert_type(result, Err[str])
    if not harn.is_err(result):
        raise AssertionError
    assert_type(harn.unwrap_err(result), str)
    assert_type(harn.unwrap(Ok(b"")), bytes)
    wider: Ok[float] | Err[object] = result
    assert_type(harn.is_ok(wider), bool)
    match result:
        case Err(error=reason):
            assert_type(reason, str)
    return 0


async def channels() -> None:
    numbers: Channel[int] = harn.channel("numbers", 8)
    await numbers.send(1)
    assert_type(await numbers.receive(), int)
    assert_type(numbers.try_send(2), bool)
    assert_type(numbers.try_receive(), int | None)
    assert_type(numbers.try_receive("empty"), int | str)
    async for number in numbers:
        assert_type(number, int)
    words = Channel[str](capacity=3)
    assert_type(words, Channel[str])
    assert_type(harn.channel(), Channel[Any])
    assert_type(await harn.channel_select([numbers], "1s"), harn.Selected[int] | None)
    if (taken := await harn.channel_select([numbers, numbers])) is not None:
        assert_type(taken.value, int)
        assert_type(taken.channel, Channel[int])
    assert_type(await harn.channel_select([numbers, words]), harn.Selected[Any] | None)


async def mailboxes() -> None:
    orders: Mailbox[dict[str, int]] = harn.mailbox_open("orders", "workflow_run", capacity=4)
    assert_type(await orders.send({"n": 1}), bool)
    assert_type(await orders.receive(), dict[str, int])
    assert_type(orders.try_receive(None), dict[str, int] | None)
    assert_type(await harn.mailbox_send(orders, {"n": 2}), bool)
    assert_type(await harn.mailbox_send("orders", "anything", scope="process"), bool)
    assert_type(harn.mailbox_lookup("orders", "tenant", "acme"), Mailbox[Any] | None)
    assert_type(orders.metrics().depth, int)


async def shared() -> None:
    counter = harn.shared_cell("counter", initial=0)
    assert_type(counter, SharedCell[int])
    assert_type(counter.get(), int)
    assert_type(counter.set(1), int)
    assert_type(counter.snapshot(), harn.SharedSnapshot[int])
    assert_type(counter.cas(counter.snapshot(), 2), bool)
    assert_type(harn.shared_cell("any"), SharedCell[Any])
    assert_type(harn.shared_cell("x", "task", "text"), SharedCell[str])
    typed: SharedCell[list[str]] = harn.shared_cell("names", "agent_session", initial=[])
    assert_type(typed.get(), list[str])
    notes = harn.shared_map("notes", scope="tenant", initial={"a": 1}, tenant_id="acme")
    assert_type(notes, harn.SharedMap[int])
    assert_type(notes.get("a"), int | None)
    assert_type(notes.get("a", 0), int)
    assert_type(notes.snapshot("a"), harn.SharedSnapshot[int | None])
    assert_type(harn.atomic(3).add(2), int)


async def permits() -> None:
    async with await harn.sync_mutex_acquire("k"):
        pass
    async with await harn.sync_semaphore_acquire("k", 4, 2, "1s", required=True) as permit:
        assert_type(permit, harn.Permit)
    assert_type(await harn.sync_gate_acquire("k", 8, "1s"), harn.Permit | None)
    if (lock := await harn.sync_rwlock_acquire("k", "read", "1s")) is not None:
        assert_type(harn.sync_release(lock), bool)
    async with harn.mutex(Service(), timeout="1s"):
        pass
    assert_type(harn.sync_metrics("mutex", "k"), harn.SyncMetrics | None)
    assert_type(harn.sync_metrics(), list[harn.SyncMetrics])
    assert_type((await harn.waitpoint_wait("deploy", "1h")).status == "completed", bool)


async def pools() -> None:
    pool = await harn.pool_create(
        name="review",
        max_concurrent=5,
        queue=harn.fair_round_robin("tenant_id"),
        backpressure=harn.backpressure_queue(100, "drop_oldest"),
        scope="session",
        isolation="thread",
        retention=harn.Retention(count=10, age="1h"),
    )
    assert_type(pool, harn.Pool)
    await harn.pool_create(queue="lifo", backpressure="fail_fast")
    await harn.pool_create(queue=harn.fifo, backpressure=harn.fail_fast)
    await harn.pool_create(queue=harn.QueueStrategy().priority(), scope="pipeline")
    await harn.pool_create(backpressure=harn.Backpressure().ring_buffer(5, "longest"))
    task = await pool.submit(fetch, "a")
    assert_type(task, PoolTask[bytes])
    assert_type(await task, bytes)
    assert_type(task.result, bytes | None)
    assert_type(await task.wait(), TaskSnapshot[bytes])
    assert_type(task.snapshot().result, bytes | None)
    assert_type(await pool.submit(count, "a", priority=3, key="acme"), PoolTask[int])
    assert_type(await pool.submit(lambda: "x", tenant_id="acme"), PoolTask[str])
    assert_type(await pool.submit(lambda: fetch("a")), PoolTask[bytes])
    assert_type(await pool.submit(partial(report, "acme", short=True)), PoolTask[dict[str, int]])
    assert_type(pool.submit_nowait(double, 3, idempotency_key="once"), PoolTask[int])
    assert_type(await pool.submit_many([nothing, nothing]), list[PoolTask[None]])
    assert_type(await pool.submit_many((double, n) for n in range(3)), list[PoolTask[int]])
    assert_type(await pool.submit_many([(count, "a"), nothing]), list[PoolTask[Any]])
    assert_type(await harn.pool_wait(task), TaskSnapshot[bytes])
    assert_type(await harn.pool_wait([task, task]), list[TaskSnapshot[bytes]])
    assert_type(await harn.pool_wait(task.snapshot().as_dict()), TaskSnapshot[Any])
    assert_type(await harn.wait_agent(task), TaskSnapshot[bytes])
    assert_type(harn.pool_get("review"), harn.Pool | None)
    assert_type(harn.pool_get("review", required=True), harn.Pool)
    assert_type(pool.snapshot().tasks, list[TaskSnapshot[Any]])
    wider: PoolTask[object] = task
    bare: PoolTask = await pool.submit(nothing)
    await asyncio.gather(wider, bare)


async def queues() -> None:
    queue = harn.worker_queue("reviews", harn.SchedulerPolicy(strategy="drr", weights={"a": 2}))
    receipt = await queue.submit(double, 21, priority="high", not_before="5m")
    assert_type(receipt, harn.EnqueueReceipt[int])
    assert_type(await receipt.result("1m"), int)
    assert_type(
        (await queue.submit(report, "acme", tenant_id="a")), harn.EnqueueReceipt[dict[str, int]]
    )
    assert_type(
        await queue.submit(partial(report, short=True), "acme"), harn.EnqueueReceipt[dict[str, int]]
    )
    assert_type(await queue.enqueue({"pr": 1}, priority="low"), harn.EnqueueReceipt[Any])
    jobs = [harn.NewJob({"pr": 1}, priority="normal"), {"pr": 2}]
    assert_type(await queue.enqueue_many(jobs), list[harn.EnqueueReceipt[Any]])
    assert_type(await receipt.state(), harn.JobState)
    assert_type(await queue.job(1), harn.JobState | None)
    assert_type(await queue.jobs(status="dead", limit=5), list[harn.JobState])
    if (claim := await queue.claim_next("me")) is not None:
        assert_type(claim.job, Job)
        assert_type(await claim.ack({"ok": True}), bool)
        assert_type(await claim.fail(ValueError("no"), delay="1s"), bool)
    assert_type(await harn.drain("reviews", Service().handle, concurrency=4), harn.DrainReport)
    assert_type(await harn.drain("reviews", lambda job: job.payload), harn.DrainReport)
    assert_type(await harn.worker_queues(), list[harn.QueueSummary])
    assert_type(await harn.consumers("reviews"), list[harn.ConsumerState])
    assert_type(await double(2), int)
    assert_type(report("acme", short=True), dict[str, int])
    assert_type(await harn.step("fetch", fetch, "a"), bytes)
    assert_type(await harn.step("count", count, "a"), int)


async def limits() -> None:
    assert_type(harn.llm_rate_limit("acme"), harn.ProviderLimits | None)
    harn.llm_rate_limit("acme", "large", rpm=600, concurrency=8)
    async with harn.llm_slot("acme", input_tokens=100) as slot:
        assert_type(await slot.settle(input_tokens=90, output_tokens=10), bool)
    grant = await harn.durable_rate_limit_acquire(
        buckets=[harn.Bucket("calls", 10, window_ms="1m")], timeout_ms=500
    )
    assert_type(grant, harn.RateLimitGrant)
    assert_type(await grant.settle({"calls": 1}), bool)
    assert_type(await harn.with_rate_limit("acme", lambda: fetch("a")), bytes)
    assert_type(await harn.with_rate_limit("acme", lambda: 3, model="large"), int)
    assert_type(harn.llm_budget("acme", usd=5, on_spent="wait"), harn.Budget | None)
    assert_type(await harn.llm_usage(since="1d", by=("tenant", "model")), list[harn.UsageTotal])


async def models() -> None:
    answer = await harn.llm_call("Review this.", schema=Review, temperature=0.0)
    assert_type(answer, harn.LlmResult[Review])
    assert_type(answer.value, Review)
    assert_type((await harn.llm_call("Hello")).value, None)
    assert_type((await harn.llm_call("Hello")).text, str)
    assert_type((await harn.llm_call("x", schema=list[int])).value, list[int])
    assert_type((await harn.llm_call("x", schema={"type": "object"})).value, Any)
    assert_type(
        await harn.llm_call([harn.Message("user", "hi")], "Be brief."), harn.LlmResult[None]
    )
    async for piece in harn.llm_stream("Hello", max_tokens=5):
        assert_type(piece, str)
    result = await harn.agent_loop("Sum up.", tools=[count, fetch], until_done=True, max_tokens=9)
    assert_type(result.text, str)
    assert_type(result.usage.total_tokens, int)
    box: Mailbox[str] = harn.mailbox_open("agent")
    await harn.agent_loop("Serve.", mode="daemon", mailbox=box, provider="acme")
    harn.llm_provider("echo", Echo(), default_model="small")


class Echo:
    """A provider of your own."""

    async def complete(self, request: harn.ModelRequest) -> harn.ModelReply:
        return harn.ModelReply("hi", harn.Usage(1, 1), request.model)

    async def stream(self, request: harn.ModelRequest) -> AsyncIterator[harn.Delta]:
        yield harn.Delta("hi")

    def count_tokens(self, request: harn.ModelRequest) -> int:
        return len(request.messages)


async def triggers() -> None:
    async def handler(event: harn.TriggerEvent) -> str:
        return event.id

    binding = await harn.trigger_register(
        id="orders",
        kind="channel.emit",
        provider="channel",
        match={"events": ["channel:orders"], "filter": {"repo": "harn"}},
        handler=handler,
        concurrency={"max": 2, "key": "provider_payload.payload.source"},
        throttle={"max": 10, "period": "1m"},
        debounce={"period": timedelta(seconds=3)},
        retry={"max": 5, "backoff": "svix"},
        dedupe_key="provider_payload.payload.id",
    )
    assert_type(binding, harn.TriggerBinding)
    await harn.trigger_register(
        id="nightly",
        kind="cron",
        provider="cron",
        match={"schedule": "0 2 * * *", "timezone": "UTC", "catchup_mode": "latest"},
        handler=harn.SpawnToPool("review", lambda event: nothing, key_from="tenant_id"),
        priority="low",
    )
    await harn.trigger_register(
        id="hook",
        kind="webhook",
        provider="github",
        match=None,
        handler="worker://reviews",
        batch={"size": 10, "timeout": "5s"},
    )
    await harn.trigger_register(
        id="one",
        kind="stream",
        provider="stream",
        match={"topic": "orders"},
        handler=lambda event: event.get("provider_payload"),
        singleton=True,
        concurrency=3,
        priority={"key": "tenant_id", "order": ["acme", "other"]},
    )
    fired = await harn.trigger_fire("orders", {"n": 1}, tenant_id="acme", kind="order")
    assert_type(fired, harn.DispatchHandle)
    assert_type((await harn.channel_emit("orders", {"n": 1}, id="1")).duplicate, bool)
    assert_type(harn.trigger_list(), list[harn.TriggerBinding])
    assert_type(harn.trigger_unregister("orders"), bool)


async def supervisors() -> None:
    async def body(ctx: harn.ChildContext) -> None:
        assert_type(ctx.attempt, int)

    sup = await harn.supervisor_start(
        name="agents",
        strategy="rest_for_one",
        children=[harn.Child("a", body, restart="always"), {"name": "b", "task": body}],
        restart=harn.Restart(mode="on_failure", max_restarts=3, backoff_ms="1s"),
    )
    assert_type(sup.state(), harn.SupervisorState)
    assert_type(await sup.wait(), harn.SupervisorState)
    assert_type(await harn.wait_agent(sup), harn.SupervisorState)
    assert_type(await sup.stop("1s"), harn.SupervisorState)
    assert_type(sup.events(), list[harn.SupervisorEvent])


async def log() -> None:
    headers: Mapping[str, Any] = {"by": "me"}
    assert_type(await harn.event_log_emit("topic", "kind", {"n": 1}, headers), harn.Event)
    assert_type(await harn.event_log_read("topic", after=3), list[harn.Event])
    async for event in harn.event_log_subscribe("topic"):
        assert_type(event.payload, Any)


def errors(error: Exception) -> str | None:
    try:
        raise error
    except harn.JobFailed as failed:
        return failed.error
    except (harn.AcquireTimeout, harn.DeadlineExceeded) as late:
        timeout: TimeoutError = late
        return str(timeout)
    except harn.HarnError as other:
        return other.code
