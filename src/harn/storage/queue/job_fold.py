"""Rebuild the queue index from the log: each record makes the changes that its operation made."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from harn.storage.contract import Event
from harn.storage.indexes import Table
from harn.storage.log import first_since_oldest
from harn.storage.operations import Operation, ask
from harn.storage.queue.attempt_history import is_expiry, without_expiry
from harn.storage.queue.enter import bind_tickets, index_jobs
from harn.storage.queue.expire import wake_jobs
from harn.storage.queue.hold import hold_jobs, serve_shares
from harn.storage.queue.job_changes import (
    Change,
    Changes,
    buried,
    cancelled,
    failed,
    purged,
    released,
    retried,
)
from harn.storage.queue.job_charges import stored_cost
from harn.storage.queue.job_index import JobRow, QueueState, Shifts, look_by, open_queue, save_queue
from harn.storage.queue.job_records import CLAIMED, PARKED, PRIORITIES, READY, JobDraft, Share
from harn.storage.queue.job_steps import COLUMNS as STEP_COLUMNS, fold_step
from harn.storage.queue.parking import (
    begin_pause,
    begin_resumption,
    fold_parked,
    fold_unparked,
    move_jobs,
)
from harn.storage.queue.pool_cancels import COLUMNS as CANCEL_COLUMNS, fold_cancel_asked
from harn.storage.queue.pool_index import adopt_settings, forget_task
from harn.storage.queue.pool_records import ROTATION
from harn.storage.queue.retention import fold_trimmed, forget_jobs
from harn.storage.queue.share_keys import adopt_policy, change_shares, refresh_key
from harn.storage.queue.share_tree import COLUMNS as NODE_COLUMNS, serve_in_tree
from harn.topics import WORKER_QUEUES, queue_topics


class JobIndex:
    """The fold of the worker topics: queues, shares, jobs and their steps, dedupe keys, tickets."""

    name = "jobs"
    keeps_latest = False
    tables: tuple[Table, ...] = (
        Table(
            "queues",
            (
                *("queue_id", "name", "dimension", "cap", "round", "last_key", "promoted"),
                *("promotions", "alarm", "acked", "purged", "dead", "responses", "ages"),
                *("cancelled", "paused", "expired", "retried", "handled", "trimmed"),
                *("charge", "hierarchy"),
            ),
            *("dump_queues", "clear_queues", "restore_queues"),
        ),
        Table(
            "shares",
            (
                *("queue_id", "key", "ready", "scheduled", "in_flight", "turn", "round"),
                *("credit", "oldest_at", "parked", "refill"),
            ),
            *("dump_shares", "clear_shares", "restore_shares"),
        ),
        Table(
            "jobs",
            (
                *("queue_id", "id", "key", "priority", "state", "enqueued_at", "wake_at"),
                *("attempts", "max_attempts", "epoch", "claim_id", "held", "consumer"),
                *("claimed_at", "settled_at", "tenant_id", "binding_key", "trigger_id", "history"),
                *("claim_round", "function", "lease", "response", "cost", "charged"),
            ),
            *("dump_jobs", "clear_jobs", "restore_jobs"),
        ),
        Table(
            "job_dedupe",
            ("queue_id", "tenant_id", "dedupe_key", "job_id"),
            *("dump_dedupe", "clear_dedupe", "restore_dedupe"),
        ),
        Table(
            "queue_triggers",
            ("queue_id", "trigger_id"),
            *("dump_triggers", "clear_triggers", "restore_triggers"),
        ),
        Table(
            "job_tickets",
            ("queue_id", "ticket", "job_id"),
            *("dump_tickets", "clear_tickets", "restore_tickets"),
        ),
        Table("share_nodes", NODE_COLUMNS, "dump_nodes", "clear_nodes", "put_nodes"),
        Table("job_steps", STEP_COLUMNS, "dump_steps", "clear_steps", "insert_steps"),
        Table(
            "pools",
            ("queue_id", "settings"),
            *("dump_pools", "clear_pools", "restore_pools"),
        ),
        Table("pool_cancels", CANCEL_COLUMNS, "dump_cancels", "clear_cancels", "insert_cancels"),
    )

    def wants(self, topic: str) -> bool:
        """Tell whether *topic* belongs to a worker queue."""
        return topic.startswith("worker.") and topic != WORKER_QUEUES

    def fold(self, event: Event) -> Operation[None]:
        """Apply *event*; a record of another kind, or of another queue's topic, changes nothing."""
        queue = event.headers.get("queue")
        folds = {
            "trigger_dispatch": _fold_job,
            "job_claimed": _fold_claim,
            "claim_renewed": _fold_renewal,
            "job_acked": _fold_settled,
            "job_failed": _fold_settled,
            "job_dead": _fold_settled,
            "job_released": _fold_settled,
            "job_purged": _fold_settled,
            "job_cancelled": _fold_settled,
            "job_retried": _fold_settled,
            "job_response": _fold_response,
            "jobs_woken": _fold_woken,
            "keys_changed": _fold_keys,
            "queue_paused": _fold_pause,
            "queue_resumed": _fold_resumption,
            "jobs_parked": _fold_parked,
            "jobs_unparked": _fold_unparked,
            "tickets_bound": _fold_tickets,
            "jobs_trimmed": fold_trimmed,
            "step_recorded": fold_step,
            "pool_opened": _fold_opened,
            "jobs_blocked": _fold_blocked,
            "jobs_admitted": _fold_admitted,
            "job_withdrawn": _fold_withdrawn,
            "job_cancel_asked": fold_cancel_asked,
        }
        if not isinstance(queue, str) or event.kind not in folds:
            return
        if event.topic not in _topics_of(queue) or not isinstance(event.payload, dict):
            return
        state = yield from open_queue(queue, create=True)
        assert state is not None
        state.now = event.occurred_at_ms
        yield from folds[event.kind](state, event)
        yield from save_queue(state)

    def held(self, topic: str, below: int, dedupe_ms: int) -> Operation[int | None]:
        """Return the oldest offset of *topic* that is needed: by a job that is not settled or
        whose dedupe key counts, and, of claims and responses, by one whose record is still there.
        Claims are also needed from the first pause on that has not ended, and from the last
        record of what was trimmed.
        """
        queue = yield from _queue_of(topic)
        if queue is None:
            return None
        jobs = queue_topics(queue).jobs
        if topic != jobs:
            needed = [(yield from first_since_oldest(topic, jobs, below))]
            if topic == queue_topics(queue).claims:
                needed += yield from _needed_claims(queue, topic, below)
            return min((each for each in needed if each is not None), default=None)
        [(queue_id, now, *_)] = yield ask("open_queue", queue=queue)
        unsettled = yield ask("oldest_unsettled", queue_id=queue_id, below=below)
        deduping = yield ask(
            "oldest_deduping", queue_id=queue_id, below=below, since=now - dedupe_ms
        )
        return min((int(id) for id, *_ in (*unsettled, *deduping)), default=None)

    def forget(self, topic: str, below: int) -> Operation[None]:
        """Remove the rows of settled jobs below an offset, and their dedupe keys."""
        queue = yield from _queue_of(topic)
        if queue is None or topic != queue_topics(queue).jobs:
            return
        [(queue_id, *_)] = yield ask("open_queue", queue=queue)
        yield from forget_jobs(queue, queue_id, below)


def _needed_claims(queue: str, topic: str, below: int) -> Operation[list[int]]:
    """Return the offsets of claims that are needed: by the oldest pause, and by the kept totals."""
    [row] = yield ask("open_queue", queue=queue)
    state = QueueState(queue, *row)
    needed = [state.trimmed] if state.trimmed else []
    since = state.pauses.since
    if since is not None:
        found = yield ask("first_offset_since", topic=topic, since=since, below=below)
        needed += [int(id) for (id,) in found]
    return needed


def _queue_of(topic: str) -> Operation[str | None]:
    """Return the queue that *topic* belongs to."""
    names = yield ask("queue_names")
    return next((name for (name,) in names if topic in _topics_of(name)), None)


def _topics_of(queue: str) -> tuple[str, str, str]:
    names = queue_topics(queue)
    return names.jobs, names.claims, names.responses


def job_draft(record: dict[str, Any]) -> JobDraft:
    """Read back what the index needs of a `trigger_dispatch` record."""
    return JobDraft(
        b"",
        b"",
        PRIORITIES.index(record["priority"]),
        record.get("tenant_id"),
        record.get("binding_key"),
        record.get("trigger_id"),
        record.get("dedupe_key"),
        record["max_attempts"],
        record.get("not_before_ms"),
        record.get("delay_ms"),
        record.get("function"),
        record.get("ticket"),
        stored_cost(record.get("cost", 1)),
    )


def _fold_job(state: QueueState, event: Event) -> Operation[None]:
    job = job_draft(event.payload)
    yield from index_jobs(state, [(event.id, event.occurred_at_ms, job)])


def _fold_claim(state: QueueState, event: Event) -> Operation[None]:
    record = event.payload
    id, scheduling = record["job_event_id"], record["scheduling"]
    rows = yield ask("one_job", queue_id=state.queue_id, id=id)
    if not rows:
        return
    key, enqueued_at = rows[0][0], rows[0][3]
    claim = (record["claim_id"], record["consumer_id"], record["expires_at_ms"], state.now)
    strategy, lease = scheduling["strategy"], record.get("lease")
    round = scheduling.get("round") if strategy == "drr" else None
    charged = scheduling.get("charged_millionths")
    yield from hold_jobs(state, [(id, *claim, round, lease, charged, enqueued_at)])
    if "policy" in scheduling:
        policy = msgspec.json.encode(scheduling["policy"], order="sorted").decode()
        yield from adopt_policy(state, policy)
    if strategy == ROTATION:
        yield from _fold_turn(state, key, scheduling)
        state.round = scheduling["round"] + 1
    elif "path" in scheduling:
        share = yield from serve_in_tree(state, key, scheduling["path"])
        yield from serve_shares(state, Counter({key: 1}), Counter(), [share])
    elif strategy == "drr":
        yield from _fold_turn(state, key, scheduling)
        state.round, state.last_key = scheduling["round"], key
        state.promoted = int(scheduling.get("promoted", False))
        state.promotions += state.promoted
    else:
        shifts = Shifts()
        shifts.add(key, ready=-1, in_flight=1, selected=1)
        yield from shifts.apply(state)
    look_by(state, record["expires_at_ms"])
    state.is_changed = True


def _fold_turn(state: QueueState, key: str, scheduling: dict[str, Any]) -> Operation[None]:
    [row] = yield ask("one_share", queue_id=state.queue_id, key=key)
    share = Share(*row)
    credit, refill = scheduling.get("credit"), 0
    if credit is None:
        credit, refill = scheduling["credit_millionths"], scheduling["refill_millionths"]
    share.serve(scheduling["round"], credit, state.cap, refill)
    promoted = Counter({key: 1}) if scheduling.get("promoted") else Counter[str]()
    yield from serve_shares(state, Counter({key: 1}), promoted, [share])


def _fold_renewal(state: QueueState, event: Event) -> Operation[None]:
    job = yield from _job_of(state, event)
    if job is None:
        return
    until = event.payload["expires_at_ms"]
    history = without_expiry(job.history) if job.state in (READY, PARKED) else job.history
    changes = Changes(state)
    changes.add(job, Change(CLAIMED, until, 1, job.attempts, None, history))
    yield from changes.apply()


def _job_of(state: QueueState, event: Event) -> Operation[JobRow | None]:
    ids = f"[{int(event.payload['job_event_id'])}]"
    rows = yield ask("jobs_by_id", queue_id=state.queue_id, ids=ids)
    return JobRow(*rows[0]) if rows else None


def _fold_settled(state: QueueState, event: Event) -> Operation[None]:
    job = yield from _job_of(state, event)
    if job is None:
        return
    changes = Changes(state)
    if event.kind == "job_retried":
        yield from refresh_key(state, job)
    charge = event.payload.get("charged_millionths")
    if event.kind == "job_acked":
        changes.ack(job, None, charge)  # its response is folded after it
    else:
        changes.add(job, SETTLED[event.kind](job, event.payload, state.now), charge)
    yield from changes.apply()
    if event.kind == "job_purged" and state.pool is not None:
        yield ask("unbind_job", queue_id=state.queue_id, id=job.id)
    state.tally.acked += event.kind == "job_acked"
    state.tally.purged += event.kind == "job_purged"
    state.tally.dead += (event.kind == "job_dead") - (event.kind == "job_retried")
    state.tally.cancelled += event.kind == "job_cancelled"
    state.tally.retried += event.kind == "job_retried"
    state.tally.expired += event.kind == "job_dead" and is_expiry(event.payload["attempts"])
    state.is_changed = True


SETTLED = {
    "job_failed": failed,
    "job_dead": buried,
    "job_released": released,
    "job_purged": purged,
    "job_cancelled": cancelled,
    "job_retried": retried,
}


def _fold_response(state: QueueState, event: Event) -> Operation[None]:
    state.tally.responses += 1
    state.is_changed = True
    if "handler_ms" in event.payload:
        state.tally.handler_ms.append(int(event.payload["handler_ms"]))
    job_id = int(event.payload["job_event_id"])
    yield ask("note_response", queue_id=state.queue_id, id=job_id, response=event.id)


def _fold_woken(state: QueueState, event: Event) -> Operation[None]:
    ids = msgspec.json.encode(event.payload["job_event_ids"]).decode()
    yield from wake_jobs(state, (yield ask("due_by_id", queue_id=state.queue_id, ids=ids)))


def _fold_keys(state: QueueState, event: Event) -> Operation[None]:
    told = event.payload
    kinds = (told["fairness_key"], told["cap"], told.get("charge", "jobs"))
    yield from change_shares(state, *kinds, told.get("hierarchy", ""))


def _fold_tickets(state: QueueState, event: Event) -> Operation[None]:
    for ticket, id in event.payload["tickets"].items():
        if (yield ask("one_job", queue_id=state.queue_id, id=id)):
            yield from bind_tickets(state, [(ticket, id)])


def _fold_opened(state: QueueState, event: Event) -> Operation[None]:
    yield from adopt_settings(state, event.payload["settings"])


def _fold_blocked(state: QueueState, event: Event) -> Operation[None]:
    yield from move_jobs(state, event.payload["job_event_ids"], READY, PARKED)


def _fold_admitted(state: QueueState, event: Event) -> Operation[None]:
    yield from move_jobs(state, event.payload["job_event_ids"], PARKED, READY)


def _fold_withdrawn(state: QueueState, event: Event) -> Operation[None]:
    job = yield from _job_of(state, event)
    if job is not None:
        yield from forget_task(state, job)


def _fold_pause(state: QueueState, event: Event) -> Operation[None]:
    yield from begin_pause(state, event.payload)


def _fold_resumption(state: QueueState, event: Event) -> Operation[None]:
    yield from begin_resumption(state, event.payload)


def _fold_parked(state: QueueState, event: Event) -> Operation[None]:
    yield from fold_parked(state, event.payload)


def _fold_unparked(state: QueueState, event: Event) -> Operation[None]:
    yield from fold_unparked(state, event.payload)
