"""Read models of the worker queues: what `queue ls`, `explain`, `metrics` and the portal show."""

from __future__ import annotations

from typing import Any

from harn.clock import iso
from harn.duration import roughly
from harn.errors import HarnError
from harn.runtime import Runtime
from harn.storage import (
    AGE_BOUNDS,
    PRIORITIES,
    STATES,
    JobView,
    QueueCounts,
    ShareCounts,
    Store,
    decode,
    inbox,
    keys_in_turn,
    list_shares,
    look_at_job,
    queue_names,
    shown_key,
)
from harn.telemetry.metrics import HistogramSample, Sample
from harn.topics import queue_topics
from harn.triggers import Triggers
from harn.workers import SchedulerPolicy, WorkerQueue, rank, summarise

MOST_KEYS = 1000
"""Keys of one queue that are listed."""
LABELLED_KEYS = 200
"""Keys of one queue that are labels of a metric; the rest are `other`."""
RECENT_MS = 3_600_000
LOOKED_BACK = 100_000
"""Responses searched, newest first, for the last failure of a job."""
_PAGE = 500


async def queues_view(runtime: Runtime, *, compare: bool = True) -> dict[str, Any]:
    """Return the document of `queue ls --json`. Cancelling leaves nothing behind.

    With *compare* it warns of consumers that claim by another policy than the environment's.
    """
    policy = SchedulerPolicy.from_env()
    summaries, blocks, warnings = [], [], []
    for counts, shares in await _everything(runtime, MOST_KEYS):
        summaries.append(summarise(counts).as_dict())
        blocks.append(_block(counts, shares, policy))
        warnings += _warnings(counts, policy if compare else None)
    document = {
        "dispatcher": await dispatcher_view(runtime),
        "worker_queues": summaries,
        "scheduler": {"policy": policy.as_dict(), "per_queue": blocks},
    }
    return {**document, "warnings": warnings} if warnings else document


async def dispatcher_view(runtime: Runtime) -> dict[str, Any]:
    """Return how the triggers' inbox stands, as the store has it.

    Repetitions are refused in memory and not written down, so they are counted by the process
    that refuses them: here, by this one.
    """
    found = await runtime.service(Store).run(inbox, write=False)
    duplicates = runtime.service(Triggers).duplicates
    states: dict[str, list[dict[str, Any]]] = {"in_flight": [], "retry": [], "stranded": []}
    for each, alive in found.oldest:
        state = "retry" if each.due_ms > found.now_ms else "in_flight" if alive else "stranded"
        states[state].append(
            {
                "envelope": each.envelope,
                "trigger_id": each.binding_id,
                "event_id": each.event_id,
                "attempt": each.attempt,
                "due_at": iso(each.due_ms) if each.due_ms else None,
            }
        )
    in_flight = found.unsettled - found.waiting
    return {
        "dispatcher_in_flight": in_flight,
        "dispatcher_retry_queue_depth": found.waiting,
        "inferred_in_flight": in_flight,
        "inferred_pending_retries": found.waiting,
        "inbox_claims_written": found.claims,
        "inbox_envelopes_written": found.envelopes,
        "inbox_duplicates_rejected": duplicates,
        "inbox_fast_path_hits": 0,  # there is no shortcut: every repetition is found in the store
        "inbox_durable_hits": duplicates,
        "inbox_expired_entries": found.expired,
        "inbox_active_entries": found.held,
        "in_flight_dispatches": states["in_flight"],
        "pending_retries": states["retry"],
        "stranded_envelopes": states["stranded"],
    }


async def _everything(
    runtime: Runtime, most_keys: int
) -> list[tuple[QueueCounts, list[ShareCounts]]]:
    store = runtime.service(Store)
    found = []
    for name in await store.run(queue_names, write=False):
        counts = await WorkerQueue(runtime, name, None).counts()
        if counts is not None:
            queue_id = counts.queue_id
            shares = await store.run(
                lambda queue_id=queue_id: list_shares(queue_id, most_keys),  # type: ignore[misc]
                write=False,
            )
            found.append((counts, shares))
    return found


def _block(counts: QueueCounts, shares: list[ShareCounts], own: SchedulerPolicy) -> dict[str, Any]:
    active = _claimers_policy(counts) or own.as_dict()
    return {
        "queue": counts.queue,
        "strategy": "fifo" if active["strategy"]["kind"] == "fifo" else "drr",
        "fairness_key": counts.dimension,
        "rounds_completed": counts.round,
        "starvation_promotions_total": counts.promotions,
        "selected_total": counts.dropped_selected + sum(each.selected for each in shares),
        "deferred_total": counts.dropped_deferred + sum(_deferred(counts, s) for s in shares),
        "keys": [
            {
                "fairness_key": shown_key(share.key),
                "weight": _weight(active, share.key),
                "deficit": credit_of(counts, share, active),
                "in_flight": share.in_flight,
                "selected_total": share.selected,
                "deferred_total": _deferred(counts, share),
                "ready_jobs": share.ready,
                "oldest_ready_age_ms": _age(counts, share.oldest_at),
            }
            for share in sorted(shares, key=lambda each: each.key)
        ],
    }


def _claimers_policy(counts: QueueCounts) -> dict[str, Any] | None:
    return None if counts.policy is None else decode(counts.policy)


def _weight(policy: dict[str, Any], key: str) -> int:
    return int(policy["weights"].get(shown_key(key), policy["default_weight"]))


def credit_of(counts: QueueCounts, share: ShareCounts | Any, policy: dict[str, Any]) -> int:
    """Return the credit a key has left in the round under way."""
    if share.turn is None or share.turn > counts.round or share.round == counts.round:
        return int(share.credit) if share.round == counts.round or share.turn is None else 0
    return _weight(policy, share.key) * int(policy["strategy"].get("quantum", 1))


def _deferred(counts: QueueCounts, share: ShareCounts) -> int:
    held_back = share.turn is None and share.ready > 0
    return share.deferred + (counts.deferrals - share.deferred_from if held_back else 0)


def _age(counts: QueueCounts, at: int | None) -> int:
    return 0 if at is None else max(0, counts.now - at)


def _warnings(counts: QueueCounts, own: SchedulerPolicy | None) -> list[str]:
    found = []
    if own is not None and counts.policy is not None and counts.policy != own.canonical():
        found.append(
            f"queue {counts.queue!r}: its latest consumer claims by another policy than this "
            "process's environment asks for"
        )
    if counts.other_policy is not None and counts.now - counts.policy_at < RECENT_MS:
        found.append(f"queue {counts.queue!r}: consumers with different policies share it")
    return found


# -- metrics -------------------------------------------------------------------------------------


async def queue_samples(runtime: Runtime) -> list[Sample | HistogramSample]:
    """Return the samples of every queue and its scheduler. Cancelling leaves nothing behind."""
    own = SchedulerPolicy.from_env()
    samples: list[Sample | HistogramSample] = []
    for counts, shares in await _everything(runtime, MOST_KEYS):
        queue = counts.queue
        depth = counts.ready + counts.in_flight
        samples.append(Sample("harn_worker_queue_depth", depth, (queue,)))
        samples.append(_ages(counts))
        samples += _share_samples(counts, shares, own)
    return samples


def _ages(counts: QueueCounts) -> HistogramSample:
    *by_bound, total_ms = counts.ages
    buckets, seen = [], 0
    for bound, count in zip((*AGE_BOUNDS, float("inf")), by_bound, strict=True):
        seen += count
        buckets.append((bound, seen))
    name = "harn_worker_queue_claim_age_seconds"
    return HistogramSample(name, tuple(buckets), total_ms / 1000, (counts.queue,))


def _share_samples(
    counts: QueueCounts, shares: list[ShareCounts], own: SchedulerPolicy
) -> list[Sample | HistogramSample]:
    policy = _claimers_policy(counts) or own.as_dict()
    values: dict[str, list[float]] = {}
    for place, share in enumerate(shares):
        key = shown_key(share.key)[:128] if place < LABELLED_KEYS else "other"
        sums = values.setdefault(key, [0.0] * 5)
        sums[0] += share.selected
        sums[1] += _deferred(counts, share)
        sums[2] += share.promoted
        sums[3] += credit_of(counts, share, policy)
        sums[4] = max(sums[4], _age(counts, share.oldest_at) / 1000)
    if counts.dropped_selected or counts.dropped_deferred:
        sums = values.setdefault("other", [0.0] * 5)
        sums[0] += counts.dropped_selected
        sums[1] += counts.dropped_deferred
    families = (
        "harn_scheduler_selections_total",
        "harn_scheduler_deferrals_total",
        "harn_scheduler_starvation_promotions_total",
        "harn_scheduler_deficit",
        "harn_scheduler_oldest_eligible_age_seconds",
    )
    return [
        Sample(family, sums[place], (counts.queue, counts.dimension, key))
        for place, family in enumerate(families)
        for key, sums in values.items()
    ]


# -- explain -------------------------------------------------------------------------------------


async def explain(runtime: Runtime, queue: str, job_id: int) -> dict[str, Any]:
    """Tell why a job is not running, and what stands between it and its next claim.

    Cancelling leaves nothing behind.
    """
    store = runtime.service(Store)
    counts = await WorkerQueue(runtime, queue, None).counts()
    if counts is None:
        raise HarnError(f"there is no queue {queue!r} in this store")
    view = await store.run(lambda: look_at_job(counts.queue_id, job_id), write=False)
    if view is None:
        raise HarnError(f"queue {queue!r} has no job {job_id}")
    own = SchedulerPolicy.from_env()
    policy = _claimers_policy(counts) or own.as_dict()
    document = _facts(counts, view)
    if STATES[view.state] in ("ready", "scheduled"):
        document["scheduling"] = await _standing(store, counts, view, policy)
    if view.history:
        document |= await _last_failure(runtime, queue, view)
    document["verdict"] = _verdict(counts, view, document)
    return document


async def _last_failure(runtime: Runtime, queue: str, view: JobView) -> dict[str, Any]:
    """Find the latest failed attempt of a job among the responses, newest first."""
    log, topic = runtime.event_log, queue_topics(queue).responses
    end = await log.head(topic)
    last = max(0, end - LOOKED_BACK)
    while end > last:
        start = max(last, end - _PAGE)
        page = await log.read(topic, start, end - start)
        for record in reversed(page):
            told = record.payload
            if told.get("job_event_id") == view.id and told.get("error") is not None:
                names = ("error", "error_type", "error_message", "traceback")
                return {"failure": {name: told.get(name) for name in names}}
        if page and page[0].occurred_at_ms < view.enqueued_at:
            break
        end = start
    return {}


def _facts(counts: QueueCounts, view: JobView) -> dict[str, Any]:
    age = max(0, counts.now - view.enqueued_at)
    document: dict[str, Any] = {
        "queue": counts.queue,
        "job_event_id": view.id,
        "state": STATES[view.state],
        "priority": PRIORITIES[view.priority],
        "rank": PRIORITIES[rank(view.priority, age)],
        "age_ms": age,
        "enqueued_at": iso(view.enqueued_at),
        "attempts": view.attempts,
        "max_attempts": view.max_attempts,
        "tenant_id": view.tenant_id,
        "trigger_id": view.trigger_id,
        "binding_key": view.binding_key,
    }
    if view.wake_at is not None and STATES[view.state] == "scheduled":
        document["not_before"] = iso(view.wake_at)
        document["not_before_in_ms"] = max(0, view.wake_at - counts.now)
    if view.claim_id is not None and view.held:
        document["claim"] = {
            "consumer_id": view.consumer,
            "claim_id": view.claim_id,
            "claimed_at": iso(view.claimed_at or 0),
            "expires_at": None if view.wake_at is None else iso(view.wake_at),
            "expires_in_ms": None if view.wake_at is None else view.wake_at - counts.now,
        }
    if view.settled_at is not None:
        document["settled_at"] = iso(view.settled_at)
    if view.history:
        document["history"] = decode(view.history)
    return document


async def _standing(
    store: Store, counts: QueueCounts, view: JobView, policy: dict[str, Any]
) -> dict[str, Any]:
    """Tell where a waiting job's key stands in the rotation, and the job within its key."""
    is_drr = policy["strategy"]["kind"] != "fifo"
    mine = rank(view.priority, counts.now - view.enqueued_at)
    standing: dict[str, Any] = {
        "strategy": "drr" if is_drr else "fifo",
        "fairness_key": counts.dimension,
        "key": shown_key(view.key),
        "ahead_in_key": _ahead(view.ahead_in_key, view, mine),
        "ahead_in_queue": _ahead(view.ahead_in_queue, view, mine),
    }
    share = view.share
    if not is_drr or share is None:
        return standing
    cap = policy["max_concurrent_per_key"]
    standing |= {
        "weight": _weight(policy, view.key),
        "credit": credit_of(counts, share, policy),
        "round": counts.round,
        "in_flight_of_key": share.in_flight,
        "cap": cap,
        "is_capped": bool(cap and share.in_flight >= cap),
        "keys_ahead": await _keys_ahead(store, counts, view, policy),
    }
    age = policy["strategy"].get("starvation_age_ms")
    if age:
        standing["promoted_in_ms"] = max(0, view.enqueued_at + age - counts.now)
    return standing


def _ahead(by_priority: tuple[int, ...], view: JobView, mine: int) -> int:
    """Count older jobs that go first; younger ones of a higher rank are told apart."""
    return sum(
        count for priority, count in enumerate(by_priority) if priority <= max(mine, view.priority)
    )


async def _keys_ahead(
    store: Store, counts: QueueCounts, view: JobView, policy: dict[str, Any]
) -> list[dict[str, Any]]:
    """List the keys that are served before this job's key, with what they may still take."""
    assert view.share is not None
    now_in_turn = await store.run(
        lambda: keys_in_turn(counts.queue_id, counts.round, MOST_KEYS), write=False
    )
    waiting = view.share.turn is not None and view.share.turn > counts.round
    found = []
    for share in now_in_turn:
        if share.key == view.key:
            continue
        before_us = (share.key <= counts.last_key, share.key) < (
            view.key <= counts.last_key,
            view.key,
        )
        if waiting or before_us:
            credit = credit_of(counts, share, policy)
            found.append({"key": shown_key(share.key), "credit": credit, "ready_jobs": share.ready})
    return found[:50]


def _verdict(counts: QueueCounts, view: JobView, document: dict[str, Any]) -> str:
    """Say in a sentence why the job is not running now."""
    state = document["state"]
    claim = document.get("claim")
    if state == "claimed" and claim:
        left = roughly(claim["expires_in_ms"])
        return f"it is running: {claim['consumer_id']} holds it for another {left}"
    if state == "failed":
        left = roughly((view.wake_at or counts.now) - counts.now)
        return f"its last attempt failed; it can be claimed again in {left}"
    if state in ("acked", "purged", "dead"):
        words = {
            "acked": "it is done",
            "purged": "it was purged",
            "dead": "it is in the dead letters",
        }
        return words[state]
    if state == "scheduled":
        return f"it waits for its time, in {roughly(document['not_before_in_ms'])}"
    standing = document["scheduling"]
    if standing.get("is_capped"):
        limit = standing["cap"]
        return f"its key {standing['key']!r} has {limit} claims in flight, as many as it may"
    ahead = standing["ahead_in_key"] if standing["strategy"] == "drr" else None
    if ahead is None:
        ahead = standing["ahead_in_queue"]
        return _behind(ahead, "of the queue")
    keys = len(standing["keys_ahead"])
    text = _behind(ahead, "of its key")
    return f"{text}; {keys} other keys have their turn before its key" if keys else text


def _behind(ahead: int, where: str) -> str:
    if not ahead:
        return f"it is the next {where}: it runs when a consumer that can handle it is free"
    return f"{ahead} jobs {where} go first"
