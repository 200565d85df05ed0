"""Fair share in a tree: the rule written out, borrowing, caps, and what a claim reads."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import harn
from harn import InvalidOption, NewJob, SchedulerPolicy, worker_queue
from harn.orchestrator.views.job_explanation import explain
from harn.orchestrator.views.queue_metrics import queue_samples
from harn.orchestrator.views.queue_views import queues_view
from harn.storage import Store
from harn.storage.log.rebuild import compare as compare_with_the_log
from harn.storage.queue import JobIndex, share_tree
from harn.testing import FakeClock, fresh_runtime
from harn.workers import WorkerQueue
from tests.workers.beside_model import few_stand_for_many, take_steps
from tests.workers.tree_model import TreeModel

COSTS = st.sampled_from([0, 0.5, 1, 3.25, 20])
PATHS = st.sampled_from(["a", "a/x", "a/y", "a/y/1", "b", "b/x", "/", "c//d/e"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enqueue"), st.lists(st.tuples(PATHS, COSTS), max_size=8)),
        st.tuples(st.just("claim"), st.integers(1, 9)),
        st.tuples(st.just("ack"), st.tuples(st.integers(0, 30), st.none() | COSTS)),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("advance"), st.sampled_from([1_000, 59_999, 60_000])),
    ),
    max_size=40,
)


def tree(weights: dict[str, int] | None = None, **options: Any) -> SchedulerPolicy:
    options = {"strategy": "drr", "hierarchy": "/", "starvation_age_ms": 0, **options}
    return SchedulerPolicy(weights=weights or {}, **options)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=STEPS,
    weights=st.dictionaries(PATHS, st.integers(1, 4)),
    quantum=st.integers(1, 3),
    cap=st.integers(0, 3),
    charge=st.sampled_from(["jobs", "cost"]),
    chunk=st.sampled_from([1, 100]),
)
async def test_D17_picks_are_those_of_the_rule_written_out_in_full(
    steps: list[Any], weights: dict[str, int], quantum: int, cap: int, charge: Any, chunk: int
) -> None:
    policy = tree(weights, quantum=quantum, max_concurrent_per_key=cap, charge=charge)
    async with fresh_runtime() as runtime:
        await follow(runtime, policy, steps, chunk)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, weights=st.dictionaries(PATHS, st.integers(1, 4)), cap=st.integers(0, 3))
async def test_D17_picks_are_those_of_the_rule_on_every_engine(
    storage_url: str, steps: list[Any], weights: dict[str, int], cap: int
) -> None:
    policy = tree(weights, max_concurrent_per_key=cap, charge="cost")
    async with fresh_runtime(storage=storage_url) as runtime:
        await follow(runtime, policy, steps, 100)


async def follow(
    runtime: harn.Runtime, policy: SchedulerPolicy, steps: list[Any], chunk: int
) -> None:
    """Take *steps* and expect the model's picks; then the index must be the fold of its log."""
    queue, model = worker_queue(uuid.uuid4().hex, policy), TreeModel(policy)
    assert await queue.claim_next("w") is None  # the queue adopts the policy with its first job
    await queue.enqueue(0, tenant_id="first")
    first = await queue.claim_next("w")
    assert first is not None
    await first.ack()
    clock: Any = runtime.clock
    await clock.advance("2m")
    model.round[""] = (await queue.counts()).round  # type: ignore[union-attr]
    with few_stand_for_many(0, chunk):
        await take_steps(queue, model, steps)
    assert await runtime.service(Store).run(lambda: compare_with_the_log([JobIndex()])) == []


async def served(queue: WorkerQueue, jobs: dict[str, int], picks: int) -> Counter[str | None]:
    await queue.enqueue_many([NewJob(0, tenant_id=t) for t, n in jobs.items() for _ in range(n)])
    claims = await queue.claim_many("w", picks)
    return Counter(claim.job.tenant_id for claim in claims)


async def test_D18_shares_are_divided_level_by_level(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", tree({"acme": 2, "acme/bob": 3}))
    jobs = {"acme/bob": 200, "acme/eve": 200, "globex/ann": 200}

    found = await served(queue, jobs, 120)

    assert found == {"acme/bob": 60, "acme/eve": 20, "globex/ann": 40}


async def test_D18_a_nodes_own_jobs_are_one_child_of_weight_1(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", tree({"acme": 5, "acme/bob": 2}))

    found = await served(queue, {"acme": 100, "acme/bob": 100}, 90)

    assert found == {"acme": 30, "acme/bob": 60}


async def test_D18_what_a_branch_does_not_use_goes_to_its_siblings_first(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", tree())
    jobs = {"acme/bob": 200, "acme/eve": 3, "globex/ann": 200}

    found = await served(queue, jobs, 100)

    assert found == {"acme/bob": 47, "acme/eve": 3, "globex/ann": 50}


async def test_D18_a_tenant_with_many_users_gets_no_more_than_one_with_few(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", tree())
    jobs = {f"crowd/{n}": 3 for n in range(100)} | {"quiet/one": 100}

    found = await served(queue, jobs, 100)

    assert found["quiet/one"] == 50


async def test_D19_a_cap_holds_at_every_level(runtime: harn.Runtime) -> None:
    queue = worker_queue("q", tree(max_concurrent_per_key=3))
    jobs = {"acme/bob": 9, "acme/eve/x": 9, "globex": 9}

    claims = await served(queue, jobs, 50)
    held = await queue.claim_next("w")

    assert claims["acme/bob"] + claims["acme/eve/x"] == 3
    assert claims["globex"] == 3
    assert held is None


@pytest.mark.parametrize("leaves", [10, 10_000])
async def test_D20_a_claim_reads_as_much_with_ten_thousand_leaves_as_with_ten(
    runtime: harn.Runtime, leaves: int
) -> None:
    queue = worker_queue("q", tree())
    await queue.enqueue_many(
        [NewJob(0, tenant_id=f"org-{n % 7}/team-{n % 91}/{n}") for n in range(leaves)]
    )
    await queue.claim_next("w")  # the queue adopts the policy
    read = 0

    def counted(row: Any) -> Any:
        nonlocal read
        read += 1
        return real(row)

    real = share_tree.read_node
    with mock.patch.object(share_tree, "read_node", counted):
        assert await queue.claim_next("w") is not None

    assert read <= 2 * 4


async def test_D21_credits_in_a_tree_outlive_a_restart_of_the_store(lasting_url: str) -> None:
    clock, policy = FakeClock(), tree({"a": 2, "a/x": 3}, charge="cost")
    jobs = [
        NewJob(0, tenant_id=t, cost=c) for c in (7, 1, 2, 1) * 4 for t in ("a/x", "a/y", "b", "b/z")
    ]
    async with fresh_runtime(storage=lasting_url, clock=clock):
        await worker_queue("q", policy).enqueue_many(jobs)
        straight = [claim.job.id for claim in await worker_queue("q", policy).claim_many("w", 20)]
    async with fresh_runtime(storage=lasting_url, clock=clock):
        first = (await worker_queue("again", policy).enqueue_many(jobs))[0].job_id
    found: list[int] = []
    for _ in range(20):
        async with fresh_runtime(storage=lasting_url, clock=clock):
            claim = await worker_queue("again", policy).claim_next("w", ttl="7d")
            assert claim is not None
            found.append(claim.job.id - first + 1)

    assert found == straight


async def test_a_queue_becomes_a_tree_and_flat_again(runtime: harn.Runtime) -> None:
    flat = worker_queue("q", SchedulerPolicy(strategy="drr"))
    await flat.enqueue_many(
        [NewJob(0, tenant_id=t) for _ in range(20) for t in ("a/x", "a/y", "b")]
    )
    assert len(await flat.claim_many("w", 3)) == 3

    found = await served(worker_queue("q", tree()), {}, 8)
    back = await flat.claim_many("w", 3)

    assert found == {"a/x": 2, "a/y": 2, "b": 4}
    assert len({claim.job.tenant_id for claim in back}) == 3
    assert await runtime.service(Store).run(lambda: compare_with_the_log([JobIndex()])) == []


async def test_a_path_that_is_too_long_is_refused_where_the_policy_is_known(
    runtime: harn.Runtime,
) -> None:
    with pytest.raises(InvalidOption, match=r"tenant_id='a/b/c/d/e' .*at most 4 names between '/'"):
        await worker_queue("q", tree()).enqueue(0, tenant_id="a/b/c/d/e")
    with pytest.raises(InvalidOption, match="weights='a/b/c/d/e'"):
        tree({"a/b/c/d/e": 2})
    with pytest.raises(InvalidOption, match="only tenants are paths"):
        tree(fairness_key="binding")
    with pytest.raises(InvalidOption, match=r"hierarchy='\.' is not accepted"):
        tree(hierarchy=".")

    await worker_queue("q").enqueue(0, tenant_id="a/b/c/d/e")  # by a producer without the policy
    claim = await worker_queue("q", tree()).claim_next("w")

    assert claim is not None and claim.job.tenant_id == "a/b/c/d/e"


async def test_a_listing_an_explanation_and_the_metrics_show_the_tree(
    runtime: harn.Runtime,
) -> None:
    queue = worker_queue("q", tree({"acme": 2}, max_concurrent_per_key=2))
    tenants = ("acme", "acme/bob", "acme/bob/x", "zoo")
    await queue.enqueue_many([NewJob(0, tenant_id=t) for _ in range(3) for t in tenants])
    await queue.claim_many("w", 3)

    block = (await queues_view(runtime))["scheduler"]["per_queue"][0]
    told = await explain(runtime, "q", 11)
    samples: Any = await queue_samples(runtime)

    acme, zoo = block["tree"]
    assert (acme["path"], acme["weight"], acme["in_flight"], acme["is_capped"]) == (
        *("acme", 2, 2),
        True,
    )
    assert (acme["ready_jobs"], zoo["ready_jobs"]) == (7, 2)
    [bob] = acme["children"]
    assert (bob["path"], bob["name"]) == ("acme/bob", "bob")
    assert [child["name"] for child in bob["children"]] == ["x"]
    assert [level["path"] for level in told["scheduling"]["levels"]] == [
        *("acme", "acme/bob", "acme/bob/x"),
    ]
    assert "its key 'acme' has 2 claims in flight" in told["verdict"]
    shown = {s.labels[-1] for s in samples if s.family == "harn_scheduler_deficit"}
    assert shown == set(tenants)


def test_a_promotion_by_age_is_off_in_a_tree_and_refused_where_it_is_asked_for() -> None:
    policy = SchedulerPolicy(strategy="drr", hierarchy="/")

    assert policy.starvation_age_ms == 0
    assert policy.as_dict()["strategy"]["starvation_age_ms"] is None
    with pytest.raises(InvalidOption, match=r"starvation_age_ms=60000 .*tree are not promoted"):
        tree(starvation_age_ms=60_000)
    environ = {"HARN_SCHEDULER_STRATEGY": "drr", "HARN_SCHEDULER_HIERARCHY": "/"}
    with pytest.raises(InvalidOption, match="starvation_age_ms=1000"):
        SchedulerPolicy.from_env(environ | {"HARN_SCHEDULER_STARVATION_AGE_MS": "1000"})
    SchedulerPolicy.from_env({"HARN_SCHEDULER_STARVATION_AGE_MS": "1000"})


def test_the_environment_makes_tenants_paths() -> None:
    assert SchedulerPolicy.from_env({"HARN_SCHEDULER_HIERARCHY": "/"}).hierarchy == "/"
    assert SchedulerPolicy.from_env({"HARN_SCHEDULER_HIERARCHY": ""}).hierarchy is None
    with pytest.raises(InvalidOption, match="HARN_SCHEDULER_HIERARCHY"):
        SchedulerPolicy.from_env({"HARN_SCHEDULER_HIERARCHY": ":"})
