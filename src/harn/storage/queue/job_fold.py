"""The queue index from the log: each record makes the changes that its operation made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from harn.storage.contract import Event
from harn.storage.operations import Operation, ask
from harn.storage.queue.attempt_history import is_expiry, without_expiry
from harn.storage.queue.enqueue import bind_tickets, index_jobs
from harn.storage.queue.expire import wake_jobs
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
from harn.storage.queue.job_index import JobRow, Shifts
from harn.storage.queue.job_records import CLAIMED, PARKED, PRIORITIES, READY, JobDraft
from harn.storage.queue.job_steps import fold_step
from harn.storage.queue.parked_jobs import (
    begin_pause,
    begin_resumption,
    fold_parked,
    fold_unparked,
    move_jobs,
)
from harn.storage.queue.pool_cancels import fold_cancel_asked
from harn.storage.queue.pool_index import adopt_settings, forget_task
from harn.storage.queue.pool_records import ROTATION
from harn.storage.queue.queue_row import QueueState, set_alarm
from harn.storage.queue.retention import fold_trimmed
from harn.storage.queue.settle import jobs_of
from harn.storage.queue.share_keys import adopt_policy, change_shares, refresh_key
from harn.storage.queue.share_tree import serve_in_tree
from harn.storage.queue.share_turns import Share
from harn.storage.queue.write_claims import hold_job, serve_shares

Fold = Callable[[QueueState, Event], Operation[None]]
"""Makes the changes of a record."""


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
    claim = (id, record["claim_id"], record["consumer_id"], record["expires_at_ms"], state.now)
    strategy, lease = scheduling["strategy"], record.get("lease")
    round = scheduling.get("round") if strategy == "drr" else None
    charged = scheduling.get("charged_millionths")
    yield from hold_job(state, (*claim, round, lease, charged), enqueued_at)
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
    set_alarm(state, record["expires_at_ms"])
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
    id = int(event.payload["job_event_id"])
    return (yield from jobs_of(state, {id})).get(id)


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


def _of_payload(change: Callable[[QueueState, dict[str, Any]], Operation[None]]) -> Fold:
    """Return the fold that makes *change* with what a record says."""
    return lambda state, event: change(state, event.payload)


FOLDS: dict[str, Fold] = {
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
    "queue_paused": _of_payload(begin_pause),
    "queue_resumed": _of_payload(begin_resumption),
    "jobs_parked": _of_payload(fold_parked),
    "jobs_unparked": _of_payload(fold_unparked),
    "tickets_bound": _fold_tickets,
    "jobs_trimmed": fold_trimmed,
    "step_recorded": fold_step,
    "pool_opened": _fold_opened,
    "jobs_blocked": _fold_blocked,
    "jobs_admitted": _fold_admitted,
    "job_withdrawn": _fold_withdrawn,
    "job_cancel_asked": fold_cancel_asked,
}
"""How the record of each kind changes the index."""
