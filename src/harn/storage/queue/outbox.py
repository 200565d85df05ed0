"""The outbox of a PostgreSQL store: jobs that were enqueued in a caller's own transaction.

The SQL function `enqueue` writes a row there, in the caller's transaction. The next operation on
the queue moves the rows that are committed into it, in the order of their commits, as if they were
enqueued now. `docs/design/outbox.md` says how that order is known without a lock.
"""

from __future__ import annotations

from typing import Any

from harn.storage.contract import APPEND
from harn.storage.operations import Ask, Operation, Row, ask, ask_ahead
from harn.storage.queue.enqueue import bind_tickets, enter_jobs, job_drafts
from harn.storage.queue.gathered_records import note
from harn.storage.queue.job_charges import cost_in
from harn.storage.queue.job_index import ACK_HELD
from harn.storage.queue.job_records import JobDraft
from harn.storage.queue.queue_row import QueueState

AT_ONCE = 1000
"""Jobs that one operation moves, at most."""
AT_ONCE_BYTES = 32 * 1024 * 1024
"""Roughly the bytes that it moves, at most; one job always fits."""


def outbox_waits(queue: str) -> Ask:
    """Ask whether jobs wait for *queue*; None comes back where there is no outbox."""
    return ask_ahead("outbox_waits", queue=queue)


def take_in(state: QueueState, dedupe_ms: int) -> Operation[None]:
    """Move the first `AT_ONCE` jobs of committed transactions into the queue.

    If the operation has appended or acked ahead, that is first in the log already, and the jobs
    wait for the next operation.
    """
    if state.ahead.get(APPEND) or state.ahead.get(ACK_HELD):
        return
    limits = {"limit": AT_ONCE, "budget": AT_ONCE_BYTES}
    rows = yield ask("read_outbox", queue=state.name, **limits)
    if not rows:
        return
    jobs = [_draft(row) for row in rows]
    entered = yield from enter_jobs(state, jobs, job_drafts(state.name, jobs), dedupe_ms)
    again = {
        str(job.ticket): id for job, (id, is_known) in zip(jobs, entered, strict=True) if is_known
    }
    if again:  # the record of a job that was there already cannot hold their tickets
        yield from bind_tickets(state, again.items())
        note(state, "tickets_bound", {"tickets": again})
    yield ask(
        "clear_outbox",
        queue=state.name,
        xacts=[row[0] for row in rows],
        seqs=[row[1] for row in rows],
    )
    yield ask("clear_commits", queue=state.name, xacts=sorted({row[0] for row in rows}))
    state.ahead.clear()  # those answers are stale now
    state.is_touched = True


def _draft(row: Row) -> JobDraft:
    _, _, ticket, body, headers, *rest = row
    record = f'{body[:-1]},"ticket":"{ticket}"}}'
    fields: list[Any] = [record.encode(), headers.encode(), *rest, ticket, cost_in(body)]
    return JobDraft(*fields)
