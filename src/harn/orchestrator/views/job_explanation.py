"""Why a job is not running, and when it will probably start: `queue explain`."""

from __future__ import annotations

from functools import partial
from typing import Any

from harn.clock import iso
from harn.duration import roughly
from harn.errors import HarnError
from harn.orchestrator.views.predicted_start import Waiting, predicted_start
from harn.orchestrator.views.queue_tree import levels_of
from harn.orchestrator.views.queue_views import MOST_KEYS, claimers_policy, credit_of, weight_of
from harn.orchestrator.views.waiting_jobs import behind, pause_of, paused, queue_facts
from harn.plurals import counted
from harn.runtime import Runtime
from harn.storage import Store, decode
from harn.storage.queue import (
    PRIORITIES,
    STATES,
    JobView,
    QueueCounts,
    job_views,
    shown_key,
    stored_jobs,
)
from harn.workers import SchedulerPolicy, WorkerQueue, consumers, consumers_for, rank

SETTLED = {
    "acked": "it is done",
    "purged": "it was purged",
    "cancelled": "it was cancelled",
    "dead": "it is in the dead letters",
}


async def explain(runtime: Runtime, queue: str, job_id: int) -> dict[str, Any]:
    """Return why a job is not running, and what comes before its next claim."""
    store = runtime.service(Store)
    counts = await WorkerQueue(runtime, queue, None).counts()
    if counts is None:
        raise HarnError(f"there is no queue {queue!r} in this store")
    view = await store.run(lambda: job_views.look_at_job(counts.queue_id, job_id), write=False)
    if view is None:
        raise HarnError(f"queue {queue!r} has no job {job_id}")
    own = SchedulerPolicy.from_env()
    policy = claimers_policy(counts) or own.as_dict()
    document = _facts(counts, view)
    if STATES[view.state] in ("parked", "ready", "scheduled"):
        document["scheduling"] = await _standing(store, counts, view, policy)
    if view.settled_at is None:
        document |= _pause(counts, view) | await _workers(runtime, queue, view)
        document["start"] = await _start(runtime, counts, view)
    if view.history:
        document |= await _last_failure(store, queue, view)
    document["verdict"] = _verdict(counts, view, document)
    return document


async def _last_failure(store: Store, queue: str, view: JobView) -> dict[str, Any]:
    """Read what the job's last response says of its failure."""
    for job in await store.run(lambda: stored_jobs.read_jobs(queue, [view.id]), write=False):
        response = decode(job.answer) if job.answer else None
        if isinstance(response, dict) and response.get("error") is not None:
            names = ("error", "error_type", "error_message", "traceback")
            return {"failure": {name: response.get(name) for name in names}}
    return {}


def _pause(counts: QueueCounts, view: JobView) -> dict[str, Any]:
    """Name the pause that holds the job back, if there is one."""
    pause = None if view.held else pause_of(counts, view.tenant_id)
    return {} if pause is None else {"pause": pause}


async def _start(runtime: Runtime, counts: QueueCounts, view: JobView) -> dict[str, Any]:
    """Predict when the job starts, from its place and from the starts of the last minutes."""
    facts = await queue_facts(runtime, counts, [view.function] if view.function else [])
    mine = rank(view.priority, counts.now - view.enqueued_at)
    line = view.ahead_in_key if facts.by_key else view.ahead_in_queue
    waiting = Waiting(
        state=STATES[view.state],
        now=counts.now,
        key=shown_key(view.key),
        ahead=_ahead(line, view, mine),
        part=facts.part(view.key),
        by_key=facts.by_key,
        wake_at=view.wake_at,
        is_paused=not view.held and pause_of(counts, view.tenant_id) is not None,
        consumers=facts.alive,
        able=None if view.function is None else facts.able[view.function],
    )
    return predicted_start(waiting, facts.pace).as_dict()


async def _workers(runtime: Runtime, queue: str, view: JobView) -> dict[str, Any]:
    """Tell how many consumers of the queue are alive, and which of them works on the job."""
    found = await consumers(queue)
    told: dict[str, Any] = {"consumers_alive": sum(each.alive for each in found)}
    if view.function is not None:
        told["consumers_able"] = await consumers_for(queue, view.function)
    mine = [each for each in found if view.held and each.consumer_id == view.consumer]
    if mine:
        consumer = max(mine, key=lambda each: (each.alive, each.seen_at_ms))
        told["consumer"] = {
            "consumer_id": consumer.consumer_id,
            "host": consumer.host,
            "pid": consumer.pid,
            "alive": consumer.alive,
            "seen_at": iso(consumer.seen_at_ms),
        }
    return told


def _facts(counts: QueueCounts, view: JobView) -> dict[str, Any]:
    age = max(0, counts.now - view.enqueued_at)
    document: dict[str, Any] = {
        "queue": counts.queue,
        "job_event_id": view.id,
        "state": STATES[view.state],
        "function": view.function,
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
    """Return the place of a waiting job's key in the rotation, and of the job within its key."""
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
        "weight": weight_of(policy, view.key),
        "credit": credit_of(counts, share, policy),
        "round": counts.round,
        "in_flight_of_key": share.in_flight,
        "cap": cap,
        "is_capped": bool(cap and share.in_flight >= cap),
        "keys_ahead": await _keys_ahead(store, counts, view, policy),
    }
    if counts.hierarchy:
        standing |= await _in_tree(store, counts, view, policy)
    elif counts.charge == "cost":
        standing["charge"] = "cost"
        standing["turn_in_rounds"] = None if share.turn is None else share.turn - counts.round
    age = policy["strategy"].get("starvation_age_ms")
    if age:
        standing["promoted_in_ms"] = max(0, view.enqueued_at + age - counts.now)
    return standing


async def _in_tree(
    store: Store, counts: QueueCounts, view: JobView, policy: dict[str, Any]
) -> dict[str, Any]:
    """Return the levels of the job's path, and which of them is at its cap."""
    look = partial(job_views.nodes_on_path, counts.queue_id, view.key, counts.hierarchy)
    levels = levels_of(counts, await store.run(look, write=False), policy)
    return {
        "hierarchy": counts.hierarchy,
        "levels": levels,
        "credit": levels[-1]["deficit"] if levels else 0,
        "is_capped": any(level["is_capped"] for level in levels),
        "capped_path": next((each["path"] for each in levels if each["is_capped"]), None),
        "keys_ahead": [],
    }


def _ahead(by_priority: tuple[int, ...], view: JobView, mine: int) -> int:
    """Count the older jobs that are claimed first."""
    return sum(
        count for priority, count in enumerate(by_priority) if priority <= max(mine, view.priority)
    )


async def _keys_ahead(
    store: Store, counts: QueueCounts, view: JobView, policy: dict[str, Any]
) -> list[dict[str, Any]]:
    """List the keys that are served before this job's key, with their credit."""
    assert view.share is not None
    last = counts.round if counts.charge == "jobs" else view.share.turn
    coming = await store.run(
        lambda: job_views.keys_in_turn(counts.queue_id, counts.round, last, MOST_KEYS), write=False
    )
    turn = view.share.turn or counts.round
    ours = (turn, view.key <= counts.last_key, view.key)
    found = []
    for share in coming:
        if share.key == view.key:
            continue
        if (share.turn or turn, share.key <= counts.last_key, share.key) < ours:
            credit = credit_of(counts, share, policy)
            found.append({"key": shown_key(share.key), "credit": credit, "ready_jobs": share.ready})
    return found[:50]


def _verdict(counts: QueueCounts, view: JobView, document: dict[str, Any]) -> str:
    """Return one sentence that says why the job is not running now."""
    state = document["state"]
    claim = document.get("claim")
    if state == "claimed" and claim:
        return _running(claim, document.get("consumer"))
    if state == "failed":
        left = roughly((view.wake_at or counts.now) - counts.now)
        return f"its last attempt failed; it can be claimed again in {left}"
    if state in SETTLED:
        return SETTLED[state]
    if "pause" in document:
        return paused(document["pause"])
    if state == "scheduled":
        return f"it waits for its time, in {roughly(document['not_before_in_ms'])}"
    standing = document["scheduling"]
    if standing.get("is_capped"):
        limit, key = standing["cap"], standing.get("capped_path") or standing["key"]
        return f"its key {key!r} has {limit} claims in flight, as many as it may"
    text = _in_line(standing)
    if not document["consumers_alive"]:
        return f"{text}; no consumer of this queue is alive"
    if document.get("consumers_able", 1):
        return text
    return f"no living consumer of this queue knows its function {view.function!r}: import it there"


def _in_line(standing: dict[str, Any]) -> str:
    if standing["strategy"] != "drr":
        return behind(standing["ahead_in_queue"], "of the queue")
    keys = len(standing["keys_ahead"])
    text = behind(standing["ahead_in_key"], "of its key")
    if keys:
        text = f"{text}; {keys} other keys have their turn before its key"
    if standing["credit"] < 0 and (rounds := standing.get("turn_in_rounds")):
        paid = counted(rounds, "round")
        text = f"{text}; its key has used more than its share: {paid} pay that"
    return text


def _running(claim: dict[str, Any], consumer: dict[str, Any] | None) -> str:
    id, left = claim["consumer_id"], roughly(claim["expires_in_ms"])
    if consumer is None:
        return f"it is running: {id} holds it for another {left}"
    where = f"{id} (process {consumer['pid']} on {consumer['host']})"
    if consumer["alive"]:
        return f"it is running: {where} holds it for another {left}"
    return f"its consumer {where} is not alive; the next living one takes the job over"
