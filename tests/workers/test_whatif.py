"""What-if: recorded picks are made again, and another policy gives what was promised."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator
from functools import partial
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from msgspec.structs import replace

import harn
from harn import (
    GiveBack,
    HarnError,
    InvalidOption,
    NewJob,
    RetryLater,
    Runtime,
    SchedulerPolicy,
    drain,
    event_log_read,
    scope,
    sleep,
    worker_queue,
)
from harn.storage import Draft, Store
from harn.storage.log import append, trim
from harn.testing import FakeClock, fresh_runtime, run_virtual
from harn.workers import fairshare
from harn.workers.whatif import (
    QueueHistory,
    Side,
    check_picks,
    examine,
    plot,
    read_goal,
    read_history,
    search,
    simulate_policy,
    tries_for,
)
from harn.workers.whatif.ledger import KeyLedger

DRR = SchedulerPolicy(strategy="drr")
TREE = SchedulerPolicy(strategy="drr", hierarchy="/", starvation_age_ms=0)
POLICIES = [
    SchedulerPolicy(),
    DRR,
    SchedulerPolicy(strategy="drr", weights={"a": 3}, quantum=2, max_concurrent_per_key=2),
    SchedulerPolicy(strategy="drr", fairness_key="binding", starvation_age_ms=1),
    SchedulerPolicy(strategy="drr", charge="cost", quantum=2),
    replace(TREE, weights={"b": 2, "b/x": 3}, max_concurrent_per_key=2),
    replace(TREE, charge="cost", quantum=2),
]
TENANTS = ("a", "b/x", "b/y")
MINUTE = 60_000


async def history_of(name: str = "q", since: int | None = None) -> QueueHistory:
    return await read_history(harn.current_runtime().service(Store), name, since)


@pytest.fixture
async def store_runtime(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url) as opened:
        yield opened


@pytest.mark.parametrize(
    ("policy", "concurrency"),
    [*zip(POLICIES, (1, 1, 3, 1, 2, 3, 1), strict=True)],
    ids=["fifo", "drr", "weights-and-cap", "starving", "cost", "tree", "tree-by-cost"],
)
async def test_the_policy_in_force_makes_all_recorded_picks_of_a_drain_again(
    store_runtime: Runtime, policy: SchedulerPolicy, concurrency: int
) -> None:
    priorities: Any = ("high", "normal", "low")
    jobs = [
        NewJob(
            n,
            tenant_id=TENANTS[n % 3],
            binding_key=f"b{n % 2}@v1",
            priority=priorities[n % 3],
            cost=n % 7,
        )
        for n in range(60)
    ]
    await worker_queue("q").enqueue_many(jobs)

    def handle(job: harn.Job) -> None:
        if job.attempts == 1 and job.payload % 10 == 7:
            raise RetryLater("1ms")
        if job.payload == 30 and not given_back:
            given_back.append(job.id)
            raise GiveBack

    given_back: list[int] = []
    await drain("q", handle, policy=policy, concurrency=concurrency)
    await worker_queue("q").enqueue_many(jobs)
    await drain("q", lambda job: None, policy=policy, concurrency=concurrency)
    history = await history_of()

    picks, agree = check_picks(history, 0)

    claims = await event_log_read("worker.q.claims")
    assert picks == sum(each.kind == "job_claimed" for each in claims) == 127
    assert agree == picks
    assert history.policies == [policy]


KEYS = st.sampled_from(["a", "b", "a/x", "a/y/1", "b/x"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.lists(st.tuples(KEYS, st.integers(0, 2)), max_size=8)),
        st.tuples(st.just("later"), KEYS),
        st.tuples(st.just("claim"), st.integers(1, 12)),
        st.tuples(st.just("ack"), st.integers(0, 30)),
        st.tuples(st.just("ack at a cost"), st.integers(0, 30)),
        st.tuples(st.just("fail"), st.integers(0, 30)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("renew"), st.integers(0, 30)),
        st.tuples(st.just("cancel"), st.integers(1, 30)),
        st.tuples(st.just("pause"), KEYS),
        st.tuples(st.just("resume"), KEYS),
        st.tuples(st.just("policy"), st.sampled_from([0, 1, 2, 3, 4, 4, 4, 5, 5, 6])),
        st.tuples(st.just("advance"), st.sampled_from([1, 4, 6, 16])),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    weights=st.dictionaries(KEYS, st.integers(1, 4)),
    cap=st.integers(0, 3),
    starvation=st.sampled_from([0, 5 * MINUTE]),
    few=st.sampled_from([0, 2, 32]),
    first=st.sampled_from([0, 1, 4, 5, 6]),
)
async def test_whatever_happens_to_a_queue_its_picks_are_made_again(
    steps: list[Any], weights: dict[str, int], cap: int, starvation: int, few: int, first: int
) -> None:
    fair = SchedulerPolicy(
        strategy="drr",
        weights=weights,
        max_concurrent_per_key=cap,
        starvation_age_ms=starvation,
    )
    by_cost = SchedulerPolicy(
        strategy="drr", charge="cost", weights=weights, quantum=3, max_concurrent_per_key=cap
    )
    in_tree = replace(fair, hierarchy="/", starvation_age_ms=0)
    policies = [fair, SchedulerPolicy(), DRR, replace(DRR, quantum=2), by_cost, in_tree]
    policies.append(replace(in_tree, charge="cost", quantum=2))
    with mock.patch.multiple(fairshare, KEYS_AT_ONCE=few):
        async with fresh_runtime() as runtime:
            await worker_queue("q", fair).enqueue("first", tenant_id="a")
            await worker_queue("q", fair).claim_next("w")
            await take_steps(runtime, [("policy", first), *steps], policies)
            picks, agree = check_picks(await history_of(), 0)

    assert agree == picks


async def take_steps(runtime: Runtime, steps: list[Any], policies: list[SchedulerPolicy]) -> None:
    queue, held = worker_queue("q", policies[0]), list[harn.Claim]()
    clock: Any = runtime.clock
    priorities: Any = ("high", "normal", "low")
    for step, detail in steps:
        if step == "enqueue":
            jobs = [NewJob(0, tenant_id=key, priority=priorities[p], cost=p) for key, p in detail]
            await queue.enqueue_many(jobs)
        elif step == "later":
            await queue.enqueue(0, tenant_id=detail, not_before="5m")
        elif step == "claim":
            held += await queue.claim_many("w", detail, ttl="10m")
        elif step == "cancel":
            await queue.cancel(detail)
        elif step == "pause":
            await queue.pause(tenant_id=detail)
        elif step == "resume":
            await queue.resume(tenant_id=detail)
        elif step == "policy":
            queue = worker_queue("q", policies[detail])
        elif step == "advance":
            await clock.advance(minutes=detail)
        elif held:
            await settle(held.pop(detail % len(held)), step, held)


async def settle(claim: harn.Claim, step: str, held: list[harn.Claim]) -> None:
    try:
        if step == "ack":
            await claim.ack()
        elif step == "ack at a cost":
            await claim.ack(cost=claim.job.id % 5)
        elif step == "fail":
            await claim.fail("no")
        elif step == "release":
            await claim.release()
        else:
            await claim.renew("10m")
            held.append(claim)
    except harn.ClaimLost:
        pass


async def busy_and_quiet(policy: SchedulerPolicy, concurrency: int = 2) -> QueueHistory:
    """A tenant that sends bursts, and one that sends a job now and then."""
    queue = worker_queue("q", policy)

    async def bursts() -> None:
        for _ in range(4):
            await queue.enqueue_many([NewJob(n, tenant_id="busy") for n in range(60)])
            await sleep("5m")

    async def now_and_then() -> None:
        for n in range(20):
            await sleep("49s")  # never in the millisecond of a burst, in which both come first
            await queue.enqueue(n, tenant_id="quiet")

    async def handle(job: harn.Job) -> None:
        await sleep(4 + job.id % 5)

    async with scope() as work:
        senders = [work.spawn(bursts), work.spawn(now_and_then)]
        serve = partial(drain, "q", handle, policy=policy, stop_when_empty=False)
        consumer = work.spawn(partial(serve, concurrency=concurrency, consumer_id="w"))
        for sender in senders:
            await sender
        while (await queue.summary()).ready or (await queue.summary()).in_flight:
            await sleep("10s")
        consumer.cancel()
    return await history_of()


def recorded_under(policy: SchedulerPolicy, concurrency: int = 2) -> QueueHistory:
    history: QueueHistory = run_virtual(busy_and_quiet, policy, concurrency)
    return history


def proposed(history: QueueHistory, policy: SchedulerPolicy, consumers: int | None = None) -> Side:
    return simulate_policy(history, 0, policy, examine(history, 0).consumers, consumers)


@pytest.mark.parametrize("policy", [SchedulerPolicy(), DRR, TREE], ids=["fifo", "drr", "tree"])
def test_the_policy_in_force_in_virtual_time_gives_the_waits_of_the_log(
    policy: SchedulerPolicy,
) -> None:
    history = recorded_under(policy)

    recorded, again = examine(history, 0).side, proposed(history, policy)

    assert again.keys == recorded.keys
    assert {key: each.jobs for key, each in recorded.keys.items()} == {"busy": 240, "quiet": 20}
    assert (recorded.policy, recorded.consumers, recorded.slots) == (policy, 1, 2)


@pytest.mark.parametrize("policy", [DRR, TREE], ids=["drr", "tree"])
def test_what_another_policy_promises_is_what_it_then_gives(policy: SchedulerPolicy) -> None:
    promised = proposed(recorded_under(SchedulerPolicy()), policy)

    given = examine(recorded_under(policy), 0).side

    assert promised.keys == given.keys
    assert (promised.keys["quiet"].wait_ms["max"] or 0) < 10_000


def test_more_consumers_shorten_every_wait() -> None:
    history = recorded_under(SchedulerPolicy())

    one, two = examine(history, 0).side, proposed(history, SchedulerPolicy(), consumers=2)

    assert (two.consumers, two.slots) == (2, 4)
    for key in ("busy", "quiet"):
        assert (two.keys[key].wait_ms["p95"] or 0) < (one.keys[key].wait_ms["p95"] or 0)


def test_shares_add_up_and_a_starved_key_gets_less_than_it_is_entitled_to() -> None:
    history = recorded_under(SchedulerPolicy())

    keys = examine(history, 0).side.keys

    assert sum(each.served or 0 for each in keys.values()) == pytest.approx(100, abs=0.2)
    assert sum(each.entitled or 0 for each in keys.values()) == pytest.approx(100, abs=0.2)
    assert (keys["quiet"].served or 0) < (keys["quiet"].entitled or 0) / 2


@pytest.mark.parametrize("policy", [DRR, TREE], ids=["drr", "tree"])
def test_a_window_begins_with_the_state_that_the_queue_had_then(policy: SchedulerPolicy) -> None:
    history = recorded_under(policy)
    middle = history.step_at[history.steps // 2]

    recorded = examine(history, middle)
    again = simulate_policy(history, middle, policy, recorded.consumers)
    picks, agree = check_picks(history, middle)

    assert 0 < picks == agree < 260
    assert sum(each.jobs for each in recorded.side.keys.values()) == picks
    assert again.keys.keys() == recorded.side.keys.keys()
    assert sum(each.jobs for each in again.keys.values()) == picks


async def crowded(*tenants: str) -> QueueHistory:
    """Every tenant has work all the time, and a job takes a second."""
    await worker_queue("q").enqueue_many(
        [NewJob(n, tenant_id=t) for n in range(40) for t in tenants]
    )
    await drain("q", lambda job: sleep("1s"), policy=DRR)
    return await history_of()


def test_a_tree_divides_shares_level_by_level() -> None:
    log: QueueHistory = run_virtual(crowded, "acme/bob", "acme/eve", "acme/joe", "globex/ann")
    weighted = replace(TREE, weights={"acme/bob": 2})

    flat, tree, keys = proposed(log, DRR), proposed(log, TREE), proposed(log, weighted).keys

    ann, bob, eve = ("globex/ann", "acme/bob", "acme/eve")
    assert flat.keys[ann].wait_ms == examine(log, 0).side.keys[ann].wait_ms
    assert (flat.keys[ann].wait_ms["max"] or 0) >= 150_000
    assert 77_000 <= (tree.keys[ann].wait_ms["max"] or 0) <= 81_000
    assert (keys[bob].wait_ms["p50"] or 0) < (keys[eve].wait_ms["p50"] or 0)
    # A pick of another leaf of acme may begin a millisecond sooner or later.
    assert keys[ann].wait_ms == pytest.approx(tree.keys[ann].wait_ms, abs=10)


def test_in_a_tree_a_key_is_entitled_to_its_part_of_its_branch() -> None:
    tenants = ("acme/bob", "acme/eve", "globex/ann")
    weighted = replace(TREE, weights={"acme": 2, "acme/bob": 3})
    ledger = KeyLedger(weighted, tenants, lambda job: 1.0)

    for _ in range(120):
        ledger.picked("acme/bob", 0)
    ledger.idle("acme/eve")
    for _ in range(30):
        ledger.picked("globex/ann", 0)
    ledger.close()

    entitled = {key: each.entitled for key, each in ledger.accounts.items()}
    assert entitled == pytest.approx({"acme/bob": 80, "acme/eve": 20, "globex/ann": 50})


def test_a_goal_in_a_tree_may_be_reached_by_a_weight_higher_up() -> None:
    log: QueueHistory = run_virtual(crowded, "acme/bob", "zoo/1", "zoo/2", "zoo/3")

    found = sought(log, "max(tenant=acme/bob) < 1m", TREE)

    assert found.is_reached
    assert found.change.flags().startswith("--weights acme:")


async def test_jobs_that_still_wait_count_with_their_wait_so_far(
    runtime: Runtime, clock: FakeClock
) -> None:
    queue = worker_queue("q")
    await queue.enqueue_many([NewJob(n, tenant_id="a") for n in range(3)])
    await clock.advance("1m")
    claim = await queue.claim_next("w")
    assert claim is not None
    await clock.advance("1m")
    await claim.ack()

    [report] = examine(await history_of(), 0).side.keys.values()

    assert (report.jobs, report.waiting) == (3, 2)
    assert report.wait_ms == {
        "p50": 2 * MINUTE,
        "p95": 2 * MINUTE,
        "p99": 2 * MINUTE,
        "max": 2 * MINUTE,
    }


async def test_pauses_cancels_and_purges_happen_again(runtime: Runtime, clock: FakeClock) -> None:
    queue = worker_queue("q", DRR)
    await queue.enqueue_many([NewJob(n, tenant_id="ab"[n % 2]) for n in range(10)])
    await queue.pause(tenant_id="a")
    await queue.cancel(2)
    claims = await queue.claim_many("w", 2)
    await clock.advance("1m")
    for claim in claims:
        await claim.ack()
    await queue.resume(tenant_id="a")
    claims = await queue.claim_many("w", 4)
    await clock.advance("1m")
    for claim in claims:
        await claim.ack()
    await queue.purge("no more")
    history = await history_of()

    keys = proposed(history, DRR).keys

    assert check_picks(history, 0) == (6, 6)
    assert (keys["a"].wait_ms["p50"] or 0) >= MINUTE
    assert sum(each.jobs for each in keys.values()) <= 9


async def test_a_log_without_policies_is_read_by_its_strategy(runtime: Runtime) -> None:
    """As an older version wrote it."""
    store = runtime.service(Store)
    await worker_queue("q", DRR).enqueue_many([NewJob(n, tenant_id="ab"[n % 2]) for n in range(6)])
    await drain("q", lambda job: None, policy=DRR)
    for event in await event_log_read("worker.q"):
        await store.run(partial(append, [rewritten(event, "worker.old")]))
    for event in await event_log_read("worker.q.claims"):
        event.payload.get("scheduling", {}).pop("policy", None)
        await store.run(partial(append, [rewritten(event, "worker.old.claims")]))

    history = await history_of("old")

    assert history.policies == [DRR]
    assert check_picks(history, 0) == (6, 6)


def rewritten(event: harn.Event, topic: str) -> Draft:
    import msgspec

    encode = msgspec.json.encode
    return Draft(topic, event.kind, encode(event.payload), b"{}", event.occurred_at_ms)


async def test_hundreds_of_keys_are_served_by_the_real_scheduler_too(runtime: Runtime) -> None:
    jobs = [NewJob(n, tenant_id=f"t{n % 300:04}") for n in range(600)]
    await worker_queue("q", DRR).enqueue_many(jobs)
    await drain("q", lambda job: None, policy=DRR, concurrency=50)
    history = await history_of()

    assert check_picks(history, 0) == (600, 600)
    assert len(proposed(history, DRR).keys) == 300


# -- what cannot be replayed ---------------------------------------------------------------------


async def test_a_log_without_jobs_or_claims_says_so(runtime: Runtime) -> None:
    with pytest.raises(HarnError, match="the log of queue 'q' has no jobs"):
        await history_of()
    await worker_queue("q").enqueue(1)
    with pytest.raises(HarnError, match="no job of queue 'q' was ever claimed"):
        await history_of()


async def test_a_trimmed_log_tells_how_far_back_it_goes(runtime: Runtime, clock: FakeClock) -> None:
    began = clock.now_ms()
    await worker_queue("q").enqueue_many(range(4))
    await drain("q", lambda job: None)
    await clock.advance("2d")
    await worker_queue("q").enqueue_many(range(4))
    await drain("q", lambda job: None)
    store = runtime.service(Store)
    await store.run(partial(trim, "worker.q", below=5))
    await store.run(partial(trim, "worker.q.claims", below=9))

    kept = await history_of()

    assert (kept.jobs, check_picks(kept, 0)) == (4, (4, 4))
    with pytest.raises(HarnError, match="was trimmed: its oldest record is of 2026-01-03"):
        await history_of(since=began)
    with pytest.raises(HarnError, match="no record after"):
        await history_of(since=clock.now_ms() + 1)


# -- goals ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log() -> QueueHistory:
    return recorded_under(SchedulerPolicy())


def sought(
    log: QueueHistory, text: str, base: SchedulerPolicy | None = None, tries: int = 40
) -> Any:
    recorded = examine(log, 0)
    policy = base or recorded.side.policy
    goal = read_goal(text, policy, recorded.side)

    def evaluate(policy: SchedulerPolicy, consumers: int | None) -> Side:
        return simulate_policy(log, 0, policy, recorded.consumers, consumers)

    return search(goal, policy, evaluate(policy, None), None, evaluate, tries)


def test_a_goal_that_is_reached_already_needs_no_change(log: QueueHistory) -> None:
    found = sought(log, "p95(tenant=quiet) < 1h")

    assert (found.is_reached, found.change.flags(), found.tried) == (True, "", 0)


def test_the_smallest_change_that_reaches_a_goal_is_found(log: QueueHistory) -> None:
    fair = sought(log, "p95(tenant=quiet) < 30s")
    wider = sought(log, "p95 <= 30s")

    assert (fair.is_reached, fair.change.flags()) == (True, "--strategy drr")
    assert wider.is_reached
    assert wider.change.consumers is not None
    assert sought(log, "p95 <= 30s").change == wider.change


def test_a_goal_out_of_reach_gives_the_nearest_miss_within_the_tries(log: QueueHistory) -> None:
    found = sought(log, "max(tenant=busy) < 1ms", tries=12)

    recorded = examine(log, 0).side.keys["busy"].wait_ms["max"] or 0
    assert (found.is_reached, found.tried <= 12) == (False, True)
    assert sought(log, "max(tenant=busy) < 1ms", tries=3).tried == 3
    assert 0 < (found.side.keys["busy"].wait_ms["max"] or 0) < recorded


def test_a_heavier_weight_is_found_before_more_consumers() -> None:
    log: QueueHistory = run_virtual(crowded, "a", "b", "c", "d")
    found = sought(log, "max(tenant=d) < 1m")

    weight = found.change.policy(DRR).weight("d")
    fewer = proposed(log, SchedulerPolicy(strategy="drr", weights={"d": weight - 1}))
    assert found.is_reached
    assert (found.change.flags(), weight > 1) == (f"--weights d:{weight}", True)
    assert (fewer.keys["d"].wait_ms["max"] or 0) >= MINUTE


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("quickly", "a measure, a key and a limit"),
        ("p96 < 3s", "the measures are p50, p95, p99, max"),
        ("p95(tenant=quiet) < 30", "'30' is no duration"),
        ("p95(tenant=quite) < 3s", "did you mean 'quiet'"),
        ("p95(binding=quiet) < 3s", "a key by its tenant"),
        ("p95(tenant=quiet) > 3s", "a measure, a key and a limit"),
    ],
)
def test_a_goal_that_cannot_be_read_is_explained(log: QueueHistory, text: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says.replace("(", r"\(")):
        read_goal(text, SchedulerPolicy(), examine(log, 0).side)


def test_a_search_on_a_long_log_makes_fewer_tries() -> None:
    assert [tries_for(jobs) for jobs in (10, 150_000, 10_000_000)] == [40, 20, 12]


def test_a_plot_is_an_svg_with_labels(log: QueueHistory) -> None:
    recorded = examine(log, 0).side
    recorded.keys["<b>&"] = recorded.keys["quiet"]

    svg = ElementTree.fromstring(plot("q", recorded, proposed(log, DRR)))

    texts = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert svg.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"busy", "quiet", "<b>&", "p95", "worst", "recorded", "proposed"} <= set(texts)
