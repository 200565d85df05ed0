"""The fair-share scheduler: exact sequences, and the same picks as the rule written out in full."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import harn
from harn.testing import fresh_runtime
from harn.workers import Claim, NewJob, SchedulerPolicy, WorkerQueue, rank, worker_queue
from tests.workers.beside_model import few_stand_for_many, take_steps
from tests.workers.model import Model

MINUTE = 60_000


async def served(queue: WorkerQueue, picks: int, *, at_once: int = 1) -> list[Claim]:
    found: list[Claim] = []
    while len(found) < picks:
        claims = await queue.claim_many("w", min(at_once, picks - len(found)))
        if not claims:
            break
        for claim in claims:
            await claim.ack()
        found += claims
    return found


def tenants(claims: list[Claim]) -> str:
    return "".join(claim.job.tenant_id or "-" for claim in claims)


@pytest.mark.parametrize("at_once", [1, 3, 50])
@pytest.mark.parametrize(
    ("weights", "quantum", "expected"),
    [
        ({}, 1, "abababababab"),
        ({"a": 3}, 1, "abaabaaabaaa"),
        ({"a": 2}, 1, "ababaabaabaa"),
        ({}, 3, "abababababab"),
    ],
)
async def test_two_busy_keys_are_served_in_an_exact_sequence(
    runtime: harn.Runtime, weights: dict[str, int], quantum: int, expected: str, at_once: int
) -> None:
    policy = SchedulerPolicy(strategy="drr", weights=weights, quantum=quantum)
    queue = worker_queue("q", policy)
    await queue.enqueue_many([NewJob(n, tenant_id=t) for n in range(20) for t in "ba"])

    claims = await served(queue, len(expected), at_once=at_once)

    assert tenants(claims) == expected


async def test_D1_over_120_picks_at_2_to_1_the_shares_are_exact(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr", weights={"a": 2}))
    await queue.enqueue_many([NewJob(n, tenant_id=t) for n in range(100) for t in "ab"])

    sequence = tenants(await served(queue, 120, at_once=7))

    assert (sequence.count("a"), sequence.count("b")) == (80, 40)


async def test_D6_drains_of_one_job_each_continue_the_rotation(runtime: harn.Runtime) -> None:
    policy = SchedulerPolicy(strategy="drr")
    await worker_queue("q").enqueue_many([NewJob(n, tenant_id=t) for n in range(100) for t in "ab"])
    sequence = ""

    for _ in range(100):
        sequence += tenants(await served(worker_queue("q", policy), 1))

    assert sequence.count("a") == sequence.count("b") == 50


async def test_fifo_is_the_default_and_looks_only_at_rank_and_age(runtime: harn.Runtime) -> None:
    queue = worker_queue("q")
    jobs: Any = [("low", "b"), ("normal", "a"), ("normal", "a"), ("high", "b"), ("high", "a")]
    await queue.enqueue_many([NewJob(n, priority=p, tenant_id=t) for n, (p, t) in enumerate(jobs)])

    assert [claim.job.payload for claim in await served(queue, 9)] == [3, 4, 1, 2, 0]


async def test_fifteen_minutes_lift_a_normal_job_over_newer_high_ones(
    runtime: harn.Runtime, clock: harn.testing.FakeClock
) -> None:
    queue = worker_queue("q")
    await queue.enqueue("old high", priority="high")
    await queue.enqueue("old normal")
    await queue.enqueue("old low", priority="low")
    await clock.advance("15m")
    await queue.enqueue("new high", priority="high")
    await queue.enqueue("new normal")

    found = [claim.job.payload for claim in await served(queue, 9)]

    assert found == ["old high", "old normal", "new high", "old low", "new normal"]


def test_ranks_rise_every_quarter_of_an_hour() -> None:
    table = [(p, m, rank(p, m * MINUTE)) for p in (0, 1, 2) for m in (0, 14, 15, 29, 30)]

    assert table == [
        *[(0, m, 0) for m in (0, 14, 15, 29, 30)],
        *[(1, 0, 1), (1, 14, 1), (1, 15, 0), (1, 29, 0), (1, 30, 0)],
        *[(2, 0, 2), (2, 14, 2), (2, 15, 1), (2, 29, 1), (2, 30, 0)],
    ]


async def test_D8_a_cold_key_gets_its_turn_although_everything_is_old(
    runtime: harn.Runtime, clock: harn.testing.FakeClock
) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr"))
    await queue.enqueue_many([NewJob(n, tenant_id="hot") for n in range(200)])
    await clock.advance("10m")
    await queue.enqueue_many([NewJob(n, tenant_id="cold") for n in range(40)])

    found = [claim.job.tenant_id for claim in await served(queue, 80)]

    assert found.count("cold") == 40
    assert found.index("cold") <= 2


async def test_D9_a_low_job_behind_younger_high_ones_of_its_own_key_is_promoted(
    runtime: harn.Runtime, clock: harn.testing.FakeClock
) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr"))
    await queue.enqueue("low", tenant_id="a", priority="low")
    await clock.advance("6m")
    await queue.enqueue_many([NewJob("high", tenant_id="a", priority="high")] * 5)

    [first] = await served(queue, 1)

    assert first.job.payload == "low"


async def test_K1_no_more_claims_of_a_key_than_its_cap_and_K2_others_go_on(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr", max_concurrent_per_key=2))
    await queue.enqueue_many([NewJob(n, tenant_id="a") for n in range(9)])
    await queue.enqueue("b1", tenant_id="b")

    held = await queue.claim_many("w", 9)
    nothing = await queue.claim_next("w")
    await held[0].ack()
    freed = await queue.claim_next("w")

    assert tenants(held) == "aba"
    assert nothing is None
    assert freed is not None and freed.job.tenant_id == "a"


async def test_a_missing_tenant_is_a_key_that_no_tenant_can_name(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr"))
    await queue.enqueue_many(
        [NewJob(n, tenant_id=t) for n in range(4) for t in (None, "_no_tenant")]
    )

    found = [claim.job.tenant_id for claim in await served(queue, 6)]

    assert found.count(None) == found.count("_no_tenant") == 3


KEYS = st.sampled_from("abcde")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.lists(st.tuples(KEYS, st.integers(0, 2)), max_size=8)),
        st.tuples(st.just("claim"), st.integers(1, 12)),
        st.tuples(st.just("ack"), st.tuples(st.integers(0, 30), st.none())),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.sampled_from([n * MINUTE for n in (1, 4, 6, 16)])),
    ),
    max_size=40,
)


@example(
    steps=[
        ("enqueue", [("a", 0), ("a", 0), *[("b", 1)] * 3, ("c", 0), ("d", 0), ("e", 0)]),
        ("advance", 6 * MINUTE),
        ("claim", 5),
    ],
    weights={},
    quantum=2,
    cap=0,
    starvation=5 * MINUTE,
    few=0,
    chunk=100,
)
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    weights=st.dictionaries(KEYS, st.integers(1, 4)),
    quantum=st.integers(1, 3),
    cap=st.integers(0, 3),
    starvation=st.sampled_from([0, 5 * MINUTE]),
    few=st.sampled_from([0, 2, 32]),
    chunk=st.sampled_from([1, 2, 100]),
)
async def test_C8_picks_are_those_of_the_rule_written_out_in_full(
    steps: list[Any],
    weights: dict[str, int],
    quantum: int,
    cap: int,
    starvation: int,
    few: int,
    chunk: int,
) -> None:
    policy = fair(weights, quantum, cap, starvation)
    async with fresh_runtime() as runtime:
        await compare(runtime, policy, steps, few, chunk)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    weights=st.dictionaries(KEYS, st.integers(1, 4)),
    cap=st.integers(0, 3),
    starvation=st.sampled_from([0, 5 * MINUTE]),
    few=st.sampled_from([0, 2, 32]),
    chunk=st.sampled_from([1, 2, 100]),
)
async def test_C8_picks_are_those_of_the_rule_on_postgresql_too(
    postgres_url: str,
    steps: list[Any],
    weights: dict[str, int],
    cap: int,
    starvation: int,
    few: int,
    chunk: int,
) -> None:
    policy = fair(weights, 1, cap, starvation)
    async with fresh_runtime(storage=postgres_url) as runtime:
        await compare(runtime, policy, steps, few, chunk)


def fair(weights: dict[str, int], quantum: int, cap: int, starvation: int) -> SchedulerPolicy:
    return SchedulerPolicy(
        strategy="drr",
        weights=weights,
        quantum=quantum,
        max_concurrent_per_key=cap,
        starvation_age_ms=starvation,
    )


async def compare(
    runtime: harn.Runtime, policy: SchedulerPolicy, steps: list[Any], few: int, chunk: int
) -> None:
    queue = worker_queue(uuid.uuid4().hex, policy)
    model = Model(
        policy.weights, policy.quantum, policy.starvation_age_ms, policy.max_concurrent_per_key
    )
    with few_stand_for_many(few, chunk):
        await take_steps(queue, model, steps)
    counts = await queue.counts()
    if counts is not None and model.in_flight:
        assert counts.round == model.rounds
        assert counts.promotions == model.promotions
        assert counts.ready == len(model.ready)
        assert counts.in_flight == sum(model.in_flight.values())


async def test_D5_a_job_that_is_given_back_costs_its_key_no_credit(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr", weights={"a": 2}))
    await queue.enqueue_many([NewJob(n, tenant_id=t) for n in range(20) for t in "ab"])

    [first] = await queue.claim_many("w", 1)
    await first.release()
    sequence = tenants(await served(queue, 6))

    assert (first.job.tenant_id, sequence) == ("a", "baabaa")


async def test_D5_a_job_given_back_in_a_later_round_earns_its_key_no_turn(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr", weights={"b": 2}))
    await queue.enqueue_many([NewJob(n, tenant_id=t) for n in range(20) for t in "ab"])

    [first] = await queue.claim_many("w", 1)
    assert tenants(await served(queue, 3)) == "bba"  # the last one begins another round
    await first.release()

    assert first.job.tenant_id == "a"
    assert tenants(await served(queue, 6)) == "bbabba"


async def test_a_key_that_runs_empty_waits_for_the_next_round(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr", weights={"b": 3}))
    await queue.enqueue_many([NewJob(n, tenant_id="b") for n in range(9)])
    await queue.enqueue(0, tenant_id="a")
    assert tenants(await served(queue, 2)) == "ab"

    await queue.enqueue(1, tenant_id="a")

    assert tenants(await served(queue, 4)) == "bbab"
