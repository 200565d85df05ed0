"""Everything in one document: what `harn top` shows of a state directory or of PostgreSQL.

All of it is read from the store, the journals and the limiter's files. Nothing is started. What
another process has only in its memory is not included.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harn import topics
from harn.clock import iso
from harn.masking import mask
from harn.orchestrator.views.queue_views import queues_view
from harn.orchestrator.views.shared_pools_view import shared_pools_view
from harn.pools import look_at_journals
from harn.ratelimit import BucketStatus, list_status, stores_of_limits
from harn.runtime import Runtime
from harn.storage import Event, Store
from harn.storage.leases import LeaseStore, list_leases
from harn.storage.triggers import dead_letters
from harn.topics import queue_topics
from harn.workers import SchedulerPolicy, consumers

RECENT = 500
"""The number of newest records of a topic that are read."""
MOST_FAILURES = 20
MOST_LEASES = 200
_FAILED = ("child_failed", "child_suppressed", "child_escalated", "child_abandoned")
_NO_MORE = ("supervisor_stopped", "supervisor_completed")


async def overview(runtime: Runtime, state_dir: Path) -> dict[str, Any]:
    """Return the document of `harn top --once --json`. Cancelling leaves nothing behind."""
    # If the environment sets no policy, one that was set in code is not worth a warning.
    asked = SchedulerPolicy.from_env() != SchedulerPolicy()
    queues = await queues_view(runtime, compare=asked)
    names = [each["queue"] for each in queues["worker_queues"]]
    journals = await asyncio.to_thread(look_at_journals, state_dir / "pools")
    receipts = await newest(runtime, topics.POOL_AUDIT)
    lifecycle = await newest(runtime, topics.SUPERVISOR_LIFECYCLE)
    depth, _ = await runtime.service(Store).run(lambda: dead_letters(0, 1), write=False)
    failures = [
        *await _failed_jobs(runtime, names),
        *_dead(await newest(runtime, topics.TRIGGER_DLQ)),
        *_dropped(receipts),
        *_failed_children(lifecycle),
        *(_failed_task(view.pool, each) for view in journals for each in view.failures),
    ]
    workers = await consumers()
    alive = Counter(name for each in workers if each.alive for name in each.queues)
    return {
        "at": iso(runtime.clock.now_ms()),
        "store": mask(runtime.storage_url),
        "state_dir": str(state_dir),
        "pools": [view.as_dict() for view in journals],
        "shared_pools": await shared_pools_view(runtime),
        "pool_receipts": pool_activity(receipts),
        "queues": [
            {
                **summary,
                "strategy": block["strategy"],
                "max_concurrent_per_key": block["max_concurrent_per_key"],
                "consumers": alive[summary["queue"]],
                "shares": shares_of(block),
            }
            for summary, block in zip(
                queues["worker_queues"], queues["scheduler"]["per_queue"], strict=True
            )
        ],
        "limits": [
            each.as_dict() for each in await limits_view(runtime, state_dir) if not each.is_idle
        ],
        "consumers": [each.as_dict() for each in workers],
        "leases": await leases_view(runtime),
        "supervisors": supervised(lifecycle),
        "dead_letters": depth,
        "failures": sorted(failures, key=lambda each: each["at"], reverse=True)[:MOST_FAILURES],
        "warnings": queues.get("warnings", []),
    }


def shares_of(block: dict[str, Any], since: dict[str, int] | None = None) -> list[dict[str, Any]]:
    """Compare the share of claims that each busy key got with that of its weight, in percent.

    A key is busy while it has jobs ready or in flight. Claims count from the totals in *since*, by
    key; without them, from the beginning. In a `fifo` queue no key is entitled to a share.

    >>> a = {"fairness_key": "a", "weight": 3, "ready_jobs": 9, "in_flight": 0}
    >>> b = {"fairness_key": "b", "weight": 1, "ready_jobs": 9, "in_flight": 1}
    >>> keys = [{**a, "selected_total": 6}, {**b, "selected_total": 2}]
    >>> block = {"strategy": "drr", "keys": keys}
    >>> [(each["share"], each["entitled"]) for each in shares_of(block)]
    [(75.0, 75.0), (25.0, 25.0)]
    """
    busy = [each for each in block["keys"] if each["ready_jobs"] or each["in_flight"]]
    served = {
        each["fairness_key"]: each["selected_total"] - (since or {}).get(each["fairness_key"], 0)
        for each in busy
    }
    weights = sum(each["weight"] for each in busy) if block["strategy"] == "drr" else 0
    total = sum(served.values())
    return [
        {
            "key": each["fairness_key"],
            "weight": each["weight"],
            "ready": each["ready_jobs"],
            "in_flight": each["in_flight"],
            "cap": block.get("max_concurrent_per_key") or None,
            "selected_total": each["selected_total"],
            "share": _percent(served[each["fairness_key"]], total),
            "entitled": _percent(each["weight"], weights),
        }
        for each in busy
    ]


def _percent(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 1) if whole > 0 else None


def pool_activity(receipts: Iterable[Event]) -> list[dict[str, Any]]:
    """Count the receipts of each pool: submits, starts, drops, and how long tasks had queued."""
    found: dict[str, dict[str, Any]] = {}
    for record in receipts:
        receipt = record.payload
        row = found.setdefault(
            str(receipt.get("pool")),
            {"submits": 0, "starts": 0, "drops": 0, "queued_ms_mean": 0.0, "last_at": ""},
        )
        row["last_at"] = iso(record.occurred_at_ms)
        if record.kind == "pool_submit":
            row["submits"] += 1
        elif record.kind == "pool_drop":
            row["drops"] += 1
        else:
            row["starts"] += 1
            waited = int(receipt.get("queued_for_ms") or 0)
            row["queued_ms_mean"] += (waited - row["queued_ms_mean"]) / row["starts"]
    return [
        {"pool": pool, **row, "queued_ms_mean": round(row["queued_ms_mean"], 1)}
        for pool, row in sorted(found.items())
    ]


def supervised(lifecycle: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the latest event of each child, by supervisor; ended supervisors are left out."""
    found: dict[str, dict[str, Any]] = {}
    for record in lifecycle:
        payload = record.payload
        id = str(payload.get("supervisor_id"))
        if record.kind in _NO_MORE:
            found.pop(id, None)
            continue
        children = found.setdefault(id, {"supervisor": id, "children": {}})["children"]
        if (child := payload.get("child")) is not None:
            child_row = children.setdefault(str(child), {"restarts": 0})
            child_row["restarts"] += record.kind == "child_restarted"
            child_row |= {"last": record.kind, "at": iso(record.occurred_at_ms)}
    return [
        {
            "supervisor": each["supervisor"],
            "children": [{"child": name, **row} for name, row in each["children"].items()],
        }
        for each in found.values()
    ]


async def newest(runtime: Runtime, topic: str, count: int = RECENT) -> list[Event]:
    """Return the newest records of *topic* that are JSON objects, oldest first."""
    head = await runtime.event_log.head(topic)
    found = await runtime.event_log.read(topic, max(0, head - count), count)
    return [each for each in found if isinstance(each.payload, dict)]  # others are damaged


async def limits_view(runtime: Runtime, state_dir: Path) -> list[BucketStatus]:
    """Return the limits of the store, or of the files in the state directory."""
    own = runtime.settings.llm_rate_limit_state_path
    urls = stores_of_limits(runtime.storage_url, state_dir, own)
    return [bucket for url in urls for bucket in await list_status(runtime, url)]


async def leases_view(runtime: Runtime) -> list[dict[str, Any]]:
    """Return the named leases, such as those of supervised children."""
    leases = runtime.service(LeaseStore)
    if not leases.is_there:
        return []
    found = await leases.store.run(lambda: list_leases(MOST_LEASES), write=False)
    return [
        {"lease": each.name, "holder": each.holder, "epoch": each.epoch, "left_ms": each.left_ms}
        for each in found
    ]


# -- recent failures -----------------------------------------------------------------------------


async def _failed_jobs(runtime: Runtime, queues: list[str]) -> list[dict[str, Any]]:
    found = []
    for name in queues:
        for record in await newest(runtime, queue_topics(name).responses, 100):
            if record.payload.get("error"):
                what = f"{name} job {record.payload.get('job_event_id')}"
                found.append(_failure(record, "job", what, record.payload["error"]))
    return found


def _dead(records: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        _failure(
            record,
            "dead letter",
            str(record.payload.get("binding_id") or record.payload.get("queue")),
            record.payload.get("error"),
        )
        for record in records
        if record.kind == "dlq_entry" and record.payload.get("state") == "pending"
    ]


def _dropped(receipts: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        _failure(record, "dropped", str(record.payload.get("pool")), record.payload.get("reason"))
        for record in receipts
        if record.kind == "pool_drop"
    ]


def _failed_children(lifecycle: Iterable[Event]) -> list[dict[str, Any]]:
    return [
        _failure(
            record,
            record.kind.removeprefix("child_"),
            f"{record.payload.get('supervisor_id')} {record.payload.get('child')}",
            record.payload.get("message"),
        )
        for record in lifecycle
        if record.kind in _FAILED
    ]


def _failed_task(pool: str, task: dict[str, Any]) -> dict[str, Any]:
    at = iso(task["at_ms"] or 0)
    return {"at": at, "kind": "pool task", "what": pool, "error": str(task["error"] or "")[:500]}


def _failure(record: Event, kind: str, what: str, error: Any) -> dict[str, Any]:
    at = iso(record.occurred_at_ms)
    return {"at": at, "kind": kind, "what": what, "error": str(error or "")[:500]}
