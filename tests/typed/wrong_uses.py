"""Uses of harn that mypy and pyright must refuse.

Each line with an ignore holds one mistake. Both checkers report an ignore that is not needed, so a
mistake that one of them no longer finds fails the check. Nothing here runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import harn
from harn import Channel, Err, Mailbox, Ok
from harn.triggers import FlowOptions, MatchOptions


@dataclass
class Review:
    verdict: str


async def fetch(url: str, retries: int = 3) -> bytes:
    return url.encode() * retries


def count(text: str) -> int:
    return len(text)


@harn.durable(name="typed:double")
async def double(n: int) -> int:
    return 2 * n


def running() -> None:
    harn.run(fetch, 1)  # type: ignore[arg-type]
    harn.run(count)  # type: ignore[call-arg, arg-type]
    harn.run(fetch("a"))  # type: ignore[call-overload]
    harn.run(fetch, "a", storag="memory://")  # type: ignore[call-overload]
    harn.run(fetch, "a", shutdown_timeout=None)  # type: ignore[call-overload]
    number: int = harn.run(fetch, "a")  # type: ignore[assignment]
    text: str = harn.from_thread(count, "a")  # type: ignore[assignment]
    harn.run_in_thread(tenant="acme")  # type: ignore[call-arg]
    harn.Runtime(pipeline=3)  # type: ignore[call-arg]
    print(number, text)


async def tasks() -> None:
    harn.spawn(fetch, 1)  # type: ignore[arg-type]
    harn.spawn(count, "a", isolation="fork")  # type: ignore[call-overload]
    harn.spawn(fetch("a"))  # type: ignore[call-overload]
    (await harn.spawn(fetch, "a")).upper_case()  # type: ignore[attr-defined]
    await harn.parallel_each(["a"], fetch, isolation="loop")  # type: ignore[call-overload]
    await harn.parallel_each([1], count)  # type: ignore[arg-type]
    (await harn.wait_agent(harn.spawn(count, "a"))).upper()  # type: ignore[attr-defined]
    await harn.wait_agent(3)  # type: ignore[call-overload]
    (await harn.retry(3, lambda: 1)) + 1  # type: ignore[operator]
    await harn.sleep(None)  # type: ignore[arg-type]
    harn.deadline([5])  # type: ignore[arg-type]
    await harn.cancel_graceful(fetch)  # type: ignore[arg-type]


def outcomes(result: Ok[int] | Err[str]) -> None:
    result.value  # type: ignore[union-attr]
    if harn.is_ok(result):
        result.error  # type: ignore[attr-defined]
    else:
        result.value  # type: ignore[attr-defined]
    if not harn.is_err(result):
        result.value.upper()  # type: ignore[attr-defined]
    harn.unwrap(3)  # type: ignore[arg-type]


async def channels() -> None:
    numbers: Channel[int] = harn.channel("numbers")
    await numbers.send("one")  # type: ignore[arg-type]
    numbers.try_send(None)  # type: ignore[arg-type]
    (await numbers.receive()).upper()  # type: ignore[attr-defined]
    numbers.try_receive() + 1  # type: ignore[operator]
    harn.channel(capacity="8")  # type: ignore[arg-type]
    box: Mailbox[int] = harn.mailbox_open("m", scope="global_")  # type: ignore[arg-type]
    await harn.mailbox_send(box, "one")  # type: ignore[misc]
    await box.send("one")  # type: ignore[arg-type]
    cell = harn.shared_cell("c", initial=0)
    cell.set("one")  # type: ignore[arg-type]
    harn.shared_cell("c", scope="threads")  # type: ignore[call-overload]
    harn.shared_map("m", initial={"a": 1}).set("a", "b")  # type: ignore[arg-type]
    harn.shared_map("m", initial={"a": 1}).get("a") + 1  # type: ignore[operator]
    harn.atomic("0")  # type: ignore[arg-type]


async def permits() -> None:
    (await harn.sync_mutex_acquire("k", "1s")).release()  # type: ignore[union-attr]
    await harn.sync_rwlock_acquire("k", "shared")  # type: ignore[call-overload]
    harn.sync_metrics("spinlock")  # type: ignore[call-overload]


async def pools() -> None:
    await harn.pool_create(scope="global")  # type: ignore[arg-type]
    await harn.pool_create(isolation="fork")  # type: ignore[arg-type]
    await harn.pool_create(queue="random")  # type: ignore[arg-type]
    await harn.pool_create(backpressure="block")  # type: ignore[arg-type]
    await harn.pool_create(max_concurent=3)  # type: ignore[call-arg]
    harn.backpressure_queue(5, on_full="drop")  # type: ignore[arg-type]
    harn.ring_buffer(5, "newest")  # type: ignore[arg-type]
    harn.Backpressure().queue(5, "drop")  # type: ignore[arg-type]
    pool = await harn.pool_create()
    await pool.submit(fetch, 1)  # type: ignore[arg-type]
    await pool.submit(count("a"))  # type: ignore[call-overload]
    text: str = await (await pool.submit(count, "a"))  # type: ignore[arg-type]
    (await pool.submit(count, "a")).result + 1  # type: ignore[operator]
    pool.submit_nowait(count, "a", priority="high")  # type: ignore[call-overload]
    harn.pool_get("review").size()  # type: ignore[union-attr]
    await harn.pool_wait("task")  # type: ignore[arg-type]
    print(text)


async def queues() -> None:
    queue = harn.worker_queue("q")
    await queue.enqueue({}, priority="urgent")  # type: ignore[arg-type]
    await queue.submit(double, "1")  # type: ignore[arg-type]
    await queue.submit(double, 1, prioriti="high")  # type: ignore[call-overload]
    text: str = await (await queue.submit(double, 1)).result()  # type: ignore[assignment]
    await queue.jobs(status="done")  # type: ignore[arg-type]
    harn.SchedulerPolicy(strategy="lifo")  # type: ignore[arg-type]
    harn.NewJob({}, priority="urgent")  # type: ignore[arg-type]
    await double("1")  # type: ignore[arg-type]
    number: int = await harn.step("fetch", fetch, "a")  # type: ignore[arg-type]
    print(text, number)


async def models() -> None:
    (await harn.llm_call("x", schema=Review)).value.verdikt  # type: ignore[attr-defined]
    (await harn.llm_call("x")).value.verdict  # type: ignore[attr-defined]
    await harn.agent_loop("x", mode="forever")  # type: ignore[arg-type]
    await harn.agent_loop("x", max_token=5)  # type: ignore[call-arg]
    harn.Message("system", "x")  # type: ignore[arg-type]
    harn.llm_rate_limit("acme", rmp=5)  # type: ignore[call-overload]
    harn.llm_budget("acme", on_spent="stop")  # type: ignore[arg-type]
    await harn.llm_usage(by=["month"])  # type: ignore[list-item]


async def triggers() -> None:
    async def register(match: MatchOptions) -> None:
        await harn.trigger_register(
            id="t", kind="channel.emit", provider="channel", match=match, handler=print
        )

    await register({"event": ["channel:x"]})  # type: ignore[typeddict-unknown-key]
    await register({"catchup_mode": "never"})  # type: ignore[typeddict-item]
    await harn.trigger_fire("t", {}, tenant=3)  # type: ignore[call-arg]
    flow: FlowOptions = {"concurency": {"max": 1}}  # type: ignore[typeddict-unknown-key]
    flow = {"throttle": {"max": 1}}  # type: ignore[typeddict-item]
    flow = {"retry": {"backoff": "none"}}  # type: ignore[typeddict-item]
    flow = {"priority": "urgent"}  # type: ignore[typeddict-item]
    print(flow)


async def supervisors() -> None:
    await harn.supervisor_start(children=[], strategy="all")  # type: ignore[arg-type]
    harn.Restart(mode="sometimes")  # type: ignore[arg-type]
    harn.Child("a", print, restart="sometimes")  # type: ignore[arg-type]
    harn.Child("a", count("b"))  # type: ignore[arg-type]
