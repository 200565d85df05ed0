"""Operations on a worker queue: enqueue, settle (`settle.py`) and claim, in one transaction.

Each is one transaction: the decision, the records in the queue's topics, and the change of the
index beside them (`job_index.py`). On PostgreSQL the queue's row is locked first, so operations on
one queue take turns and share one round of the scheduler; on SQLite there is one writer anyway.
Each works on many jobs at a time, in the same few statements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from harn.storage.contract import APPEND, Draft
from harn.storage.operations import Ask, Operation, ask, ask_ahead
from harn.storage.queue.claimable import needed_triggers
from harn.storage.queue.enqueue import enter_at_once, enter_jobs, job_drafts
from harn.storage.queue.expire import end_due
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_index import ack_held
from harn.storage.queue.job_records import (
    Board,
    ClaimedJob,
    JobDraft,
    Settlement,
    SettlementResult,
    dedupe_key_of,
)
from harn.storage.queue.outbox import outbox_waits, take_in
from harn.storage.queue.parked_jobs import carry_on
from harn.storage.queue.queue_row import QueueState, open_queue, write_holding
from harn.storage.queue.settle import NewId, settle_all
from harn.storage.queue.share_keys import change_shares
from harn.storage.queue.single_statements import look_at_once
from harn.storage.queue.write_back import UNKNOWN, write_back
from harn.storage.queue.write_claims import Claiming, fill_bodies, hold_choice
from harn.topics import queue_topics

HEAD = "topic_head"


class Claimed(msgspec.Struct, frozen=True):
    """The claimed jobs, and when the next one is due if nothing else happens."""

    jobs: list[ClaimedJob]
    now: int = 0
    next_due: int | None = None


class QueueWork(msgspec.Struct, frozen=True):
    """The requests that one operation on a queue carries out, in this order."""

    jobs: Sequence[JobDraft] = ()
    settlements: Sequence[Settlement] = ()
    claims: Sequence[Claiming] = ()
    dedupe_ms: int | None = None
    """How long dedupe keys count; without it the outbox is left alone."""
    dimension: str = "tenant"
    """What makes the queue's keys, as far as the caller knows."""


class QueueDone(msgspec.Struct, frozen=True):
    """The results of a `QueueWork`, each list in the order of its requests."""

    entered: list[tuple[int, bool]]
    settled: list[SettlementResult]
    claimed: list[Claimed]
    changed_nothing: bool = False
    """Whether nothing was written, because the claims chose no job."""
    noted: tuple[int, int] | None = None
    """The newest offset of the queue's claims before and after; None if they did not grow."""
    is_untold: bool = False
    """Whether *settled* may be incomplete, or *noted* is not known."""
    dimension: str | None = None
    """What makes the queue's keys, where that was read."""


def work_on(queue: str, work: QueueWork, new_id: NewId) -> Operation[QueueDone]:
    """Enqueue, settle and claim in one transaction, which reads the queue's row once."""
    drafts = job_drafts(queue, work.jobs) if work.jobs else []
    if work.jobs and not work.settlements and not work.claims:
        at_once = yield from enter_at_once(queue, work.dimension, work.jobs, drafts)
        if at_once is not None:
            return QueueDone(at_once, [], [])
    state = yield from _open(queue, work, drafts)
    if state is None:
        gone = [SettlementResult("lost", note="the queue is gone") for _ in work.settlements]
        return QueueDone([], gone, [Claimed([]) for _ in work.claims], changed_nothing=True)
    entered: list[tuple[int, bool]] = []
    settled: list[SettlementResult] = []
    claimed: list[Claimed] = []
    if work.jobs:
        entered = yield from enter_jobs(state, work.jobs, drafts, work.dedupe_ms or 0)
    if work.settlements:
        settled = yield from settle_all(state, work.settlements, new_id)
    died = state.tally.dead
    for claiming in work.claims:
        if state.holding is not None:
            yield from write_holding(state)
        claimed.append((yield from _claim(state, claiming, new_id)))
        state.ahead.clear()
    idle = not (work.jobs or work.settlements) and _is_idle(state, claimed)
    died = state.tally.dead - died
    noted = yield from write_back(state)
    for each in claimed:  # last, so that all of the writing above goes out with this question
        yield from fill_bodies(state, each.jobs)
    is_untold = noted is not None and (died > 0 or noted == UNKNOWN)
    return QueueDone(entered, settled, claimed, idle, noted, is_untold, state.dimension)


def _open(queue: str, work: QueueWork, drafts: Sequence[Draft]) -> Operation[QueueState | None]:
    """Open the queue and ask ahead what *work* will need; None if there is no such queue.

    Jobs that wait in the outbox enter the queue first.
    """
    acks = _acks(work.settlements) if work.settlements else {}
    look = _first_look(work, acks) if work.claims else None
    ahead: list[Ask] = []
    state = None
    if not work.jobs:
        state = yield from look_at_once(queue, acks, look)
    if state is None:
        ahead = _ahead(queue, work, drafts, acks, look)
        state = yield from _open_in_steps(queue, work, ahead)
    if state is None or state.outbox is None or work.dedupe_ms is None:
        return state
    if _must_take_in(state, ahead):
        yield from take_in(state, work.dedupe_ms)
    return state


def _open_in_steps(
    queue: str, work: QueueWork, ahead: Sequence[Ask]
) -> Operation[QueueState | None]:
    state = yield from open_queue(queue, create=bool(work.jobs), ahead=ahead)
    if state is None and work.dedupe_ms is not None:
        waiting: Any = yield outbox_waits(queue)
        if waiting is not None:  # even if none waits: another process may just have moved them
            state = yield from open_queue(queue, create=bool(waiting), ahead=ahead)
    if state is not None and (rows := state.ahead.pop(HEAD, None)):
        state.responded = int(rows[0][0])
    return state


def _is_idle(state: QueueState, claimed: Sequence[Claimed]) -> bool:
    """Tell whether claims chose nothing and changed nothing."""
    if state.is_changed or state.is_touched or state.drafts:
        return False
    return not any(each.jobs for each in claimed)


def _ahead(
    queue: str, work: QueueWork, drafts: Sequence[Draft], acks: Mapping[int, str], look: Ask | None
) -> list[Ask]:
    """Return the questions that can be asked with the queue's row, before anything is written."""
    asked: list[Ask] = []
    if work.settlements:
        asked.append(ask(HEAD, topic=queue_topics(queue).responses))
    if work.jobs:
        if set(map(dedupe_key_of, work.jobs)) <= {None}:
            append = ask_ahead(APPEND, drafts=drafts, places=True, unless_waiting=queue)
            asked.append(append)
        return asked
    if acks:
        asked.append(ack_held(queue, acks))
    if look is not None:
        asked.append(look)
    return asked


def _first_look(work: QueueWork, acks: Mapping[int, str]) -> Ask | None:
    """Return the first question of the policy, if nothing but *acks* comes before the claim."""
    if len(work.claims) != 1 or len(acks) < len(work.settlements):
        return None
    return work.claims[0].look


def _must_take_in(state: QueueState, ahead: Sequence[Ask]) -> bool:
    """Tell whether jobs wait in the outbox: the queue's row says so, or an append was refused."""
    is_refused = APPEND not in state.ahead and any(each.name == APPEND for each in ahead)
    return bool(state.outbox) or is_refused


def _acks(settlements: Sequence[Settlement]) -> dict[int, str]:
    """Return the claims to be acked, by job, of jobs for which nothing else is asked."""
    acks = {
        item.job_id: item.claim_id
        for item in settlements
        if item.action == "ack" and item.charge is None
    }
    if len(acks) == len(settlements):  # so no job is asked for twice
        return acks
    asked = Counter([item.job_id for item in settlements])
    return {id: claim_id for id, claim_id in acks.items() if asked[id] == 1}


# -- claim ---------------------------------------------------------------------------------------


def _claim(state: QueueState, claiming: Claiming, new_id: NewId) -> Operation[Claimed]:
    is_due, has_keys = state.is_due, _has_keys_of(state, claiming)
    if is_due or not has_keys:
        state.ahead.clear()  # those answers are about to become stale
    if is_due:
        yield from end_due(state, new_id)
    if not has_keys:
        yield from _adopt_keys(state, claiming)
    if state.paused is not None:
        yield from carry_on(state)
        state.ahead.clear()  # jobs in those answers may be parked now
        if state.pauses.queue is not None:
            return Claimed([], state.now, state.alarm)
    board = Board(
        queue=state.name,
        queue_id=state.queue_id,
        now=state.now,
        dimension=state.dimension,
        cap=state.cap,
        policy=state.policy,
        round=state.round,
        last_key=state.last_key,
        promoted=bool(state.promoted),
        triggers=(yield from needed_triggers(state.queue_id, claiming.triggers)),
    )
    seen = state.ahead.get(claiming.look.name) if board.triggers is None else None
    choice = yield from claiming.choose(board, len(claiming.claim_ids), seen)
    if not choice.picks:
        if claiming.cap and (yield ask("held_back_keys", queue_id=state.queue_id)):
            yield ask("add_deferral", queue_id=state.queue_id)
            state.is_touched = True
        return Claimed([], state.now, state.alarm)
    jobs = yield from hold_choice(state, claiming, choice)
    return Claimed(jobs, state.now, state.alarm)


def _adopt_keys(state: QueueState, claiming: Claiming) -> Operation[None]:
    """Let the queue have the keys and the cap of its latest claimer."""
    record: dict[str, Any] = {
        "fairness_key": claiming.dimension,
        "cap": claiming.cap,
        "changed_at_ms": state.now,
    }
    if claiming.charge != "jobs":
        record["charge"] = claiming.charge
    if claiming.hierarchy:
        record["hierarchy"] = claiming.hierarchy
    note(state, "keys_changed", record)
    state.is_touched = True
    yield from change_shares(
        state, claiming.dimension, claiming.cap, claiming.charge, claiming.hierarchy
    )


def _has_keys_of(state: QueueState, claiming: Claiming) -> bool:
    if claiming.strategy != "drr":
        return True
    keys = (claiming.dimension, claiming.cap, claiming.charge, claiming.hierarchy)
    return (state.dimension, state.cap, state.charge, state.hierarchy) == keys


def settle_claims(
    queue: str, items: Sequence[Settlement], new_id: NewId
) -> Operation[list[SettlementResult]]:
    """Carry out the settlements; each is judged alone.

    A superseded claim is `lost`, a second call on a settled claim or job is `again`, and
    neither changes anything.
    """
    return (yield from work_on(queue, QueueWork(settlements=items), new_id)).settled
