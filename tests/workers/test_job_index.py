"""The job index is a fold of the log: rebuilding it from the records gives the same index."""

from __future__ import annotations

import tempfile
import uuid
from typing import Any

from hypothesis import HealthCheck, example, given, settings, strategies as st

import harn
from harn import ClaimLost, NewJob, SchedulerPolicy, worker_queue
from harn.context import current_frame_var
from harn.storage import Store
from harn.storage.engines.postgres.postgres_driver import PostgresDriver
from harn.storage.log.rebuild import compare
from harn.storage.queue import JobIndex, end_claims_of
from harn.testing import FakeClock, fresh_runtime
from harn.workers import Claim, WorkerQueue

KEYS = st.sampled_from(["a", "a/b", "b", None])
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("enqueue"),
            st.lists(st.tuples(KEYS, st.integers(0, 2), st.sampled_from([None, "2m"])), max_size=5),
        ),
        st.tuples(st.just("claim"), st.tuples(st.integers(0, 5), st.integers(1, 5))),
        st.tuples(
            st.sampled_from(["ack", "ack", "fail", "retry", "release", "renew", "delay"]),
            st.integers(0, 20),
        ),
        st.tuples(st.just("advance"), st.sampled_from([1, 3, 6, 20, 1500])),
        st.tuples(st.just("purge"), st.none()),
        st.tuples(st.just("trim"), st.sampled_from(["", ".claims", ".responses"])),
        st.tuples(st.just("summary"), st.none()),
        st.tuples(st.sampled_from(["cancel", "again"]), st.integers(1, 12)),
        st.tuples(st.sampled_from(["pause", "resume"]), KEYS),
        st.tuples(st.just("die"), st.none()),
    ),
    min_size=10,
    max_size=40,
)
FIRST = [
    ("enqueue", [(key, priority, None) for key in ("a", "b", None) for priority in (1, 2)]),
    ("claim", (0, 4)),
    ("ack", 0),
]
"""What every case begins with, so that there is something to settle."""
POLICIES = [
    SchedulerPolicy(strategy="drr", weights={"a": 2}, max_concurrent_per_key=2),
    SchedulerPolicy(),
    SchedulerPolicy(strategy="drr", fairness_key="tenant-and-binding", quantum=2),
    SchedulerPolicy(strategy="drr", charge="cost", quantum=2, max_concurrent_per_key=2),
    SchedulerPolicy(strategy="drr", hierarchy="/", weights={"a/b": 2}, max_concurrent_per_key=3),
]


UNCAPPED_CLAIMER = [
    *(("purge", None), ("enqueue", [("a", 0, None)] * 4), ("advance", 6)),
    *(("claim", (0, 2)), ("claim", (1, 4))),
]
"""A claimer without a cap takes several jobs of a key that another one's policy caps."""


BY_COST = [
    *(("enqueue", [("a", 2, None)] * 6 + [("b", 0, None)] * 6), ("claim", (3, 4)), ("fail", 1)),
    *(("ack", 7), ("claim", (3, 2)), ("release", 3), ("ack", 1), ("claim", (3, 5)), ("die", None)),
    *(("advance", 6), ("claim", (3, 5)), ("pause", "a"), ("claim", (3, 3)), ("resume", "a")),
    *(("claim", (3, 5)), ("cancel", 9), ("claim", (0, 2)), ("claim", (3, 5)), ("ack", 12)),
]
"""Jobs cost, and are corrected, released, paused and cancelled; then they count as one each."""


IN_A_TREE: list[tuple[str, Any]] = [
    (step, (4, detail[1]) if step == "claim" else detail) for step, detail in list[Any](BY_COST)
]


ALL_TRIMMED: list[tuple[str, Any]] = [
    *(("purge", None), ("claim", (3, 1)), ("advance", 6), ("purge", None)),
    *(("advance", 1500), ("trim", ""), ("trim", ".claims")),
]
"""Nothing is left in the log that says what the queue charges."""


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
@example(steps=UNCAPPED_CLAIMER)
@example(steps=BY_COST)
@example(steps=IN_A_TREE)
@example(steps=ALL_TRIMMED)
@example(steps=[*ALL_TRIMMED, ("enqueue", [("a", 1, None)])])
@example(steps=[(step, (4, 1) if step == "claim" else detail) for step, detail in ALL_TRIMMED])
async def test_a_rebuilt_index_is_the_index(storage_url: str, steps: list[Any]) -> None:
    async with fresh_runtime(storage=storage_url) as runtime:
        await work_and_compare(runtime, steps)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
async def test_without_the_servers_functions_the_index_is_the_same(
    postgres_url: str, steps: list[Any]
) -> None:
    async with fresh_runtime(storage=postgres_url) as runtime:
        driver = runtime.service(Store).driver
        assert isinstance(driver, PostgresDriver)
        driver._server.has_functions = False
        await work_and_compare(runtime, steps)


CHANGED_BY_ANOTHER = [
    *[("enqueue", [])] * 6,
    *(("enqueue", [("a", 0, None)]), ("advance", 6), ("claim", (2, 1)), ("claim", (0, 2))),
]
"""One writer changes the keys of a queue, then the other claims by its own policy as before."""


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS)
@example(steps=CHANGED_BY_ANOTHER)
@example(steps=BY_COST)
@example(steps=IN_A_TREE)
async def test_an_index_folds_what_another_process_wrote_to_the_files(steps: list[Any]) -> None:
    clock = FakeClock()
    with tempfile.TemporaryDirectory() as place:
        url = f"file:///{place}/log"
        async with (
            fresh_runtime(storage=url, clock=clock) as one,
            fresh_runtime(storage=url, clock=clock) as other,
        ):
            await take_turns([one, other], steps)
            for runtime in (one, other):
                run = runtime.service(Store).run
                assert await run(lambda: compare([JobIndex()])) == []


async def take_turns(runtimes: list[harn.Runtime], steps: list[Any]) -> None:
    """Let each step be taken by the next of *runtimes*, whose claims are its own."""
    clock: Any = runtimes[0].clock
    queues: dict[harn.Runtime, list[WorkerQueue]] = {}
    held: dict[harn.Runtime, list[Claim]] = {}
    for number, (step, detail) in enumerate([*FIRST, *FIRST, *steps]):
        runtime = runtimes[number % len(runtimes)]
        token = current_frame_var.set(runtime.frame)
        try:
            if runtime not in queues:
                queues[runtime] = [worker_queue("q", policy) for policy in POLICIES]
                held[runtime] = []
            await clock.advance("1ms")
            await act(queues[runtime], held[runtime], clock, step, detail)
        finally:
            current_frame_var.reset(token)


async def work_and_compare(runtime: harn.Runtime, steps: list[Any]) -> None:
    clock: Any = runtime.clock
    name = uuid.uuid4().hex  # cases may share a schema
    queues = [worker_queue(name, policy) for policy in POLICIES]
    held: list[Claim] = []
    for step, detail in [*FIRST, *steps]:
        await clock.advance("1ms")
        await act(queues, held, clock, step, detail)

    differences = await runtime.service(Store).run(lambda: compare([JobIndex()]))

    assert differences == []


async def act(queues: Any, held: list[Claim], clock: Any, step: str, detail: Any) -> None:
    queue = queues[0]
    if step == "enqueue":
        priorities: Any = ("high", "normal", "low")
        await queue.enqueue_many(
            NewJob(
                0,
                tenant_id=t,
                priority=priorities[p],
                not_before=later,
                max_attempts=2,
                trigger_id=t,
                dedupe_key=f"{t}{p}" if p else None,
                cost=(1, 0, 7.5)[p],
            )
            for t, p, later in detail
        )
    elif step == "claim":
        which, n = detail
        if which == len(queues):
            await claim_under_a_lease(queue, n)
        else:
            held += await queues[which].claim_many("w", n, ttl="5m")
    elif step == "advance":
        await clock.advance(minutes=detail)
    elif step == "purge":
        await queue.purge()
    elif step in ("cancel", "again", "pause", "resume"):
        await {
            "cancel": lambda: queue.cancel(detail, "not wanted"),
            "again": lambda: queue.retry(detail),
            "pause": lambda: queue.pause(tenant_id=detail, reason="busy"),
            "resume": lambda: queue.resume(tenant_id=detail),
        }[step]()
    elif step == "die":
        runtime = queue.runtime
        await queue.store.run(lambda: end_claims_of(queue.name, "lease", runtime.ids.new))
    elif step == "summary":
        await queue.summary()
    elif step == "trim":
        await harn.current_runtime().event_log.trim(f"worker.{queue.name}{detail}", keep=0)
    elif held:
        claim = held[detail % len(held)]
        try:
            await {
                "ack": lambda: claim.ack({"n": 1}, cost=detail or None),
                "fail": lambda: claim.fail("boom"),
                "retry": lambda: claim.fail("boom", delay="3m"),
                "release": lambda: claim.release(),
                "delay": lambda: claim.release("busy", delay="2m"),
                "renew": lambda: claim.renew("4m"),
            }[step]()
        except ClaimLost:
            held.remove(claim)


async def claim_under_a_lease(queue: Any, n: int) -> None:
    """Claim jobs as a consumer does that renews a lease."""
    await queue.operations.claim(lambda: queue.claiming("w", n, 300_000, lease="lease"))
