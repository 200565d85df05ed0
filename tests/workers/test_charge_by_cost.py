"""Fair share by cost: the rule written out in full, its bound, corrections, debts, restarts."""

from __future__ import annotations

import itertools
import tempfile
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

import harn
from harn import InvalidOption, NewJob, SchedulerPolicy, worker_queue
from harn.orchestrator.views.job_explanation import explain
from harn.orchestrator.views.queue_metrics import queue_samples
from harn.orchestrator.views.queue_views import queues_view
from harn.storage import Store
from harn.storage.log.rebuild import compare as compare_with_the_log
from harn.storage.queue import JobIndex, job_charges
from harn.testing import FakeClock, fresh_runtime
from harn.workers import Claim, WorkerQueue
from tests.workers.beside_model import few_stand_for_many, take_steps
from tests.workers.model import MILLION, CostModel

MINUTE = 60_000
COSTS = st.sampled_from([0, 0.001, 0.5, 1, 2, 3.25, 7, 40])
KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.lists(st.tuples(KEYS, COSTS), max_size=8)),
        st.tuples(st.just("claim"), st.integers(1, 9)),
        st.tuples(st.just("ack"), st.tuples(st.integers(0, 30), st.none() | COSTS)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.sampled_from([1_000, 59_999, 60_000, 6 * MINUTE])),
    ),
    max_size=40,
)
A_DEBT_AND_A_FULL_ROUND = [
    ("enqueue", [("a", 40), ("b", 1), ("b", 1), ("c", 0), ("d", 7), ("a", 1), ("b", 2)]),
    *(("claim", 3), ("ack", (0, 3.25)), ("claim", 9)),
]


def policy_of(
    weights: dict[str, int], quantum: int = 1, cap: int = 0, starvation: int = 0
) -> SchedulerPolicy:
    return SchedulerPolicy(
        strategy="drr",
        charge="cost",
        weights=weights,
        quantum=quantum,
        max_concurrent_per_key=cap,
        starvation_age_ms=starvation,
    )


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    weights=st.dictionaries(KEYS, st.integers(1, 4)),
    quantum=st.integers(1, 3),
    cap=st.integers(0, 3),
    starvation=st.sampled_from([0, 5 * MINUTE]),
    few=st.sampled_from([0, 2, 32]),
    chunk=st.sampled_from([1, 2, 100]),
)
@example(A_DEBT_AND_A_FULL_ROUND, {}, 1, 0, 0, 0, 1)
@example(A_DEBT_AND_A_FULL_ROUND, {}, 1, 0, 0, 0, 2)
async def test_D10_picks_are_those_of_the_rule_written_out_in_full(
    steps: list[Any],
    weights: dict[str, int],
    quantum: int,
    cap: int,
    starvation: int,
    few: int,
    chunk: int,
) -> None:
    async with fresh_runtime() as runtime:
        await follow(runtime, policy_of(weights, quantum, cap, starvation), steps, few, chunk)


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    weights=st.dictionaries(KEYS, st.integers(1, 4)),
    cap=st.integers(0, 3),
    few=st.sampled_from([0, 32]),
    chunk=st.sampled_from([1, 100]),
)
@example(A_DEBT_AND_A_FULL_ROUND, {}, 0, 0, 1)
async def test_D10_picks_are_those_of_the_rule_on_postgresql_too(
    postgres_url: str, steps: list[Any], weights: dict[str, int], cap: int, few: int, chunk: int
) -> None:
    async with fresh_runtime(storage=postgres_url) as runtime:
        await follow(runtime, policy_of(weights, cap=cap), steps, few, chunk)


async def follow(
    runtime: harn.Runtime, policy: SchedulerPolicy, steps: list[Any], few: int, chunk: int
) -> None:
    """Take *steps* and expect the model's picks; then the index must be the fold of its log."""
    queue = worker_queue(uuid.uuid4().hex, policy)
    model = CostModel(
        policy.weights, policy.quantum, policy.starvation_age_ms, policy.max_concurrent_per_key
    )
    with few_stand_for_many(few, chunk):
        await take_steps(queue, model, steps)
    counts = await queue.counts()
    if counts is not None and model.charged:
        assert (counts.round, counts.promotions) == (model.rounds, model.promotions)
    assert await runtime.service(Store).run(lambda: compare_with_the_log([JobIndex()])) == []


# -- the bound of ruling 66 --------------------------------------------------------------------


class Ledger:
    """What each key was charged after each event: settled jobs finally, running ones as expected.

    *wrong* is, for each key, the largest sum of corrections that its jobs in flight await at once:
    what no scheduler can know.
    """

    def __init__(self, keys: str) -> None:
        self.charged = dict.fromkeys(keys, 0)
        self.after: list[dict[str, int]] = [dict(self.charged)]
        self.largest = 0
        self._coming: dict[int, tuple[str, int]] = {}
        self.wrong = dict.fromkeys(keys, 0)

    def pick(self, id: int, key: str, expected: int, real: int) -> None:
        self.charged[key] += expected
        self.largest = max(self.largest, expected, real)
        self._coming[id] = (key, abs(real - expected))
        for each in self.wrong:
            awaited = sum(size for owner, size in self._coming.values() if owner == each)
            self.wrong[each] = max(self.wrong[each], awaited)
        self.after.append(dict(self.charged))

    def settle(self, id: int, key: str, expected: int, real: int) -> None:
        self.charged[key] += real - expected
        del self._coming[id]
        self.after.append(dict(self.charged))

    def widest_gap(self, one: str, other: str, weights: dict[str, int]) -> float:
        """Return the largest difference of charge by weight over any interval."""
        gaps = [now[one] / weights[one] - now[other] / weights[other] for now in self.after]
        return max(gaps) - min(gaps)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    weights=st.fixed_dictionaries({key: st.integers(1, 4) for key in "abc"}),
    quantum=st.integers(1, 5),
    costs=st.lists(st.tuples(COSTS, COSTS), min_size=4, max_size=30),
    batches=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    truth=st.sampled_from(["as expected", "one at a time", "many in flight"]),
)
async def test_D11_two_busy_keys_differ_by_two_quanta_and_two_costs_at_most(
    weights: dict[str, int],
    quantum: int,
    costs: list[tuple[float, float]],
    batches: list[int],
    truth: str,
) -> None:
    """Over any interval; where many corrections are awaited at once, those count in addition."""
    policy = policy_of(weights, quantum)
    async with fresh_runtime():
        ledger = await run_busy(policy, costs, batches, truth)

    for one, other in itertools.combinations("abc", 2):
        bound = 2 * quantum * MILLION + 2 * ledger.largest
        if truth == "many in flight":
            bound += 2 * (ledger.wrong[one] + ledger.wrong[other])
        assert ledger.widest_gap(one, other, weights) <= bound


async def run_busy(
    policy: SchedulerPolicy, costs: list[tuple[float, float]], batches: list[int], truth: str
) -> Ledger:
    """Serve keys that always have work, and return what they were charged."""
    queue, ledger, picks = worker_queue("q", policy), Ledger("abc"), 60
    cycle = itertools.cycle(costs)
    jobs = [(key, *next(cycle)) for key in "abc" for _ in range(picks)]
    receipts = await queue.enqueue_many(
        [NewJob(0, tenant_id=key, cost=cost) for key, cost, _ in jobs]
    )
    about = {receipt.job_id: job for receipt, job in zip(receipts, jobs, strict=True)}
    sizes = itertools.cycle([1] if truth == "one at a time" else batches)
    held: list[Claim] = []
    charges: dict[int, tuple[int, int]] = {}
    for size in itertools.islice(sizes, picks // 6 if truth != "one at a time" else picks):
        for claim in await queue.claim_many("w", size):
            key, expected, real = about[claim.job.id]
            real = expected if truth == "as expected" else real
            pair = (
                policy.charge_of(round(expected * MILLION)),
                policy.charge_of(round(real * MILLION)),
            )
            ledger.pick(claim.job.id, key, *pair)
            held.append(claim)
            charges[claim.job.id] = pair
        while held and (truth == "one at a time" or len(held) > 4):
            claim = held.pop(0)
            charged, really = charges[claim.job.id]
            await claim.ack(cost=really / MILLION)
            ledger.settle(claim.job.id, about[claim.job.id][0], charged, really)
    return ledger


async def test_D11_a_key_with_dear_jobs_gets_as_much_cost_not_as_many_jobs(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue_many([NewJob(0, tenant_id="dear", cost=10) for _ in range(50)])
    await queue.enqueue_many([NewJob(0, tenant_id="cheap") for _ in range(200)])

    claims = await queue.claim_many("w", 110)

    found = [claim.job.tenant_id for claim in claims]
    assert (found.count("dear"), found.count("cheap")) == (10, 100)


# -- corrections, debts, least charges ---------------------------------------------------------


async def picks(queue: WorkerQueue, n: int) -> str:
    """Claim and ack one job after the other; return their tenants."""
    found = ""
    for _ in range(n):
        claim = await queue.claim_next("w")
        assert claim is not None
        await claim.ack()
        found += claim.job.tenant_id or "-"
    return found


async def test_D12_the_real_cost_at_the_ack_is_what_a_key_pays(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue_many([NewJob(0, tenant_id=t) for _ in range(20) for t in "ab"])

    claim = await queue.claim_next("w")
    assert claim is not None and claim.job.tenant_id == "a"
    await claim.ack(cost=5)

    assert await picks(queue, 8) == "bbbbbaba"


async def test_D12_a_job_that_was_cheaper_than_expected_gives_its_key_the_rest(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue(0, tenant_id="a", cost=100)
    await queue.enqueue_many([NewJob(0, tenant_id=t) for _ in range(20) for t in "ab"])

    claim = await queue.claim_next("w")
    assert claim is not None and claim.job.tenant_id == "a"
    assert await picks(queue, 3) == "bbb"
    await claim.ack(cost=1)

    assert await picks(queue, 6) == "aababa"


async def test_D12_a_job_that_is_given_back_costs_its_key_nothing(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue_many([NewJob(0, tenant_id=t, cost=3) for _ in range(20) for t in "ab"])

    claim = await queue.claim_next("w")
    assert claim is not None and claim.job.tenant_id == "a"
    await claim.release()

    assert await picks(queue, 4) == "baba"


async def test_a_failed_attempt_stays_at_its_estimate(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue_many([NewJob(0, tenant_id="a", cost=3), NewJob(0, tenant_id="a")])
    await queue.enqueue_many([NewJob(0, tenant_id="b") for _ in range(20)])

    claim = await queue.claim_next("w")
    assert claim is not None and claim.job.tenant_id == "a"
    await claim.fail("boom", delay="1h")

    assert await picks(queue, 5) == "bbbab"


@pytest.mark.parametrize(("idle_ms", "expected"), [(59_999, "bbbba"), (60_000, "babab")])
async def test_D13_a_debt_stays_while_a_key_is_empty_for_less_than_a_minute(
    runtime: harn.Runtime, clock: FakeClock, idle_ms: int, expected: str
) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue(0, tenant_id="a", cost=5)
    claim = await queue.claim_next("w")
    assert claim is not None
    await claim.ack()
    await clock.advance(f"{idle_ms}ms")

    await queue.enqueue_many([NewJob(0, tenant_id=t) for _ in range(9) for t in "ab"])

    assert await picks(queue, 5) == expected


async def test_D13_a_debt_outlives_a_key_without_jobs_also_among_many_idle_keys(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue(0, tenant_id="debtor", cost=5)
    await queue.enqueue_many([NewJob(0, tenant_id=f"idle-{n}") for n in range(800)])
    for claim in await queue.claim_many("w", 801):
        await claim.ack()

    await queue.enqueue_many([NewJob(0, tenant_id=t) for _ in range(9) for t in ("debtor", "z")])

    found = [claim.job.tenant_id for claim in await queue.claim_many("w", 6)]
    assert found == ["z"] * 4 + ["debtor", "z"]


async def test_D14_jobs_that_cost_nothing_do_not_keep_the_turn(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue_many([NewJob(0, tenant_id="free", cost=0) for _ in range(500)])
    await queue.enqueue_many([NewJob(0, tenant_id="paid") for _ in range(3)])

    found = ""
    for _ in range(303):
        claim = await queue.claim_next("w")
        assert claim is not None
        await claim.ack(cost=0 if claim.job.tenant_id == "free" else None)
        found += "f" if claim.job.tenant_id == "free" else "p"

    assert found.count("p") == 3


# -- where it is stored, and how it is set -----------------------------------------------------


async def test_D15_credits_and_debts_outlive_a_restart_of_the_store(lasting_url: str) -> None:
    clock = FakeClock()
    async with fresh_runtime(storage=lasting_url, clock=clock):
        queue = worker_queue("q", policy_of({"b": 2}))
        await queue.enqueue_many(
            [NewJob(0, tenant_id=t, cost=c) for c in (7, 1, 2, 1) * 5 for t in "ab"]
        )
        straight = [claim.job.id for claim in await queue.claim_many("w", 20)]
    async with fresh_runtime(storage=lasting_url, clock=clock):
        queue = worker_queue("again", policy_of({"b": 2}))
        first = await queue.enqueue_many(
            [NewJob(0, tenant_id=t, cost=c) for c in (7, 1, 2, 1) * 5 for t in "ab"]
        )
    found: list[int] = []
    for _ in range(20):
        async with fresh_runtime(storage=lasting_url, clock=clock):
            claim = await worker_queue("again", policy_of({"b": 2})).claim_next("w", ttl="7d")
            assert claim is not None
            found.append(claim.job.id - first[0].job_id + 1)

    assert found == straight


async def test_two_consumers_on_the_files_share_one_account() -> None:
    with tempfile.TemporaryDirectory() as place:
        url, clock = f"file:///{place}/log", FakeClock()
        async with fresh_runtime(storage=url, clock=clock):
            await worker_queue("q").enqueue_many(
                [NewJob(0, tenant_id=t, cost=c) for c in (4, 1) * 10 for t in "ab"]
            )
        found = ""
        for _ in range(16):
            async with fresh_runtime(storage=url, clock=clock):
                found += await picks(worker_queue("q", policy_of({})), 1)

    assert (found.count("a"), found.count("b")) == (8, 8)


async def test_the_claim_and_the_ack_say_what_was_charged(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", policy_of({"a": 2}))
    await queue.enqueue_many([NewJob(0, tenant_id="a", cost=0.5), NewJob(0, tenant_id="a")])

    claim = await queue.claim_next("w")
    assert claim is not None
    await claim.ack(cost=812.25)

    records = [event.payload async for event in runtime.event_log.stream("worker.q.claims")]
    assert records[0]["charge"] == "cost"
    assert records[1]["scheduling"].pop("policy")["charge"] == "cost"
    assert records[1]["scheduling"] == {
        "strategy": "drr",
        "fairness_key": "tenant",
        "key": "a",
        "round": 1,
        "charged_millionths": 500_000,
        "credit_millionths": 1_500_000,
        "refill_millionths": 2_000_000,
    }
    assert records[2]["cost"] == 812.25
    assert records[2]["charged_millionths"] == 812_250_000


async def test_where_jobs_are_charged_a_cost_is_recorded_and_changes_nothing(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", SchedulerPolicy(strategy="drr"))
    await queue.enqueue_many([NewJob(0, tenant_id=t, cost=50) for _ in range(5) for t in "ab"])

    claim = await queue.claim_next("w")
    assert claim is not None
    await claim.ack(cost=900)

    assert await picks(queue, 5) == "babab"
    records = [event.payload async for event in runtime.event_log.stream("worker.q.claims")]
    assert "charge" not in records[0]
    acked = next(record for record in records if "acked_at_ms" in record)
    assert acked["cost"] == 900 and "charged_millionths" not in acked


ODD_COSTS = [-1, float("inf"), float("nan"), "1", True, Decimal(1), 10**400]


@pytest.mark.parametrize("cost", ODD_COSTS, ids=lambda cost: repr(cost)[:12])
async def test_a_cost_is_a_finite_number(runtime: harn.Runtime, cost: Any) -> None:
    queue = worker_queue("q")

    with pytest.raises(InvalidOption, match="cost"):
        await queue.enqueue(0, cost=cost)

    assert (await queue.summary()).ready == 0


@pytest.mark.parametrize("cost", ODD_COSTS, ids=lambda cost: repr(cost)[:12])
async def test_a_cost_at_the_ack_is_a_finite_number(runtime: harn.Runtime, cost: Any) -> None:
    queue = worker_queue("q")
    await queue.enqueue(0)
    claim = await queue.claim_next("w")
    assert claim is not None

    with pytest.raises(InvalidOption, match="cost"):
        await claim.ack(cost=cost)


async def test_a_cost_beyond_all_bounds_counts_as_the_largest(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue(0, tenant_id="a", cost=1e300)
    await queue.enqueue_many([NewJob(0, tenant_id=t) for _ in range(3) for t in "ab"])

    found = [claim.job.tenant_id for claim in await queue.claim_many("w", 7)]

    assert found == ["a", "b", "b", "b", "a", "a", "a"]
    counts = await queue.counts()
    assert counts is not None and counts.round > job_charges.LARGEST_AMOUNT // MILLION


async def test_another_way_to_charge_lets_every_key_begin_again(runtime: harn.Runtime) -> None:
    by_cost, by_jobs = worker_queue("q", policy_of({})), worker_queue("q", fair())
    await by_cost.enqueue_many([NewJob(0, tenant_id=t, cost=50) for _ in range(9) for t in "ab"])
    assert await picks(by_cost, 3) == "aba"

    assert await picks(by_jobs, 4) == "baba"
    assert await picks(by_cost, 2) == "ba"
    assert await runtime.service(Store).run(lambda: compare_with_the_log([JobIndex()])) == []


def fair() -> SchedulerPolicy:
    return SchedulerPolicy(strategy="drr")


async def test_a_listing_an_explanation_and_the_metrics_show_credit_and_debt(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", policy_of({}))
    await queue.enqueue_many(
        [NewJob(0, tenant_id=t, cost=c) for t, c in (("a", 3.5), ("b", 0.25), ("a", 1), ("b", 1))]
    )
    await queue.claim_many("w", 2)

    block = (await queues_view(runtime))["scheduler"]["per_queue"][0]
    told = await explain(runtime, "q", 3)
    samples = {(s.family, s.labels[-1]): s for s in await queue_samples(runtime)}

    assert block["charge"] == "cost"
    assert [key["deficit"] for key in block["keys"]] == [-2.5, 0.75]
    assert told["scheduling"]["credit"] == -2.5
    assert told["scheduling"]["turn_in_rounds"] == 3
    assert [key["key"] for key in told["scheduling"]["keys_ahead"]] == ["b"]
    assert "its key has used more than its share: 3 rounds pay that" in told["verdict"]
    deficit: Any = samples["harn_scheduler_deficit", "a"]
    assert deficit.value == -2.5


def test_the_environment_says_what_is_charged() -> None:
    environ = {"HARN_SCHEDULER_STRATEGY": "drr", "HARN_SCHEDULER_CHARGE": " Cost "}

    assert SchedulerPolicy.from_env(environ).charge == "cost"
    assert SchedulerPolicy.from_env({}).charge == "jobs"
    with pytest.raises(InvalidOption, match=r"HARN_SCHEDULER_CHARGE.*jobs, cost"):
        SchedulerPolicy.from_env({"HARN_SCHEDULER_CHARGE": "tokens"})
    with pytest.raises(InvalidOption, match="one of jobs, cost"):
        SchedulerPolicy(charge="tokens")  # type: ignore[arg-type]
