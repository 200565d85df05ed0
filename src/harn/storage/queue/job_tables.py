"""The index of the worker topics: its tables, how records reach it, and which it still needs."""

from __future__ import annotations

from harn.storage.contract import Event
from harn.storage.indexes import Table
from harn.storage.log import first_since_oldest
from harn.storage.operations import Operation, ask
from harn.storage.queue.job_fold import FOLDS
from harn.storage.queue.job_steps import COLUMNS as STEP_COLUMNS
from harn.storage.queue.pool_cancels import COLUMNS as CANCEL_COLUMNS
from harn.storage.queue.queue_row import QueueState, open_queue, save_queue
from harn.storage.queue.retention import forget_jobs
from harn.storage.queue.share_tree import COLUMNS as NODE_COLUMNS
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
        if not isinstance(queue, str) or event.kind not in FOLDS:
            return
        if event.topic not in _topics_of(queue) or not isinstance(event.payload, dict):
            return
        state = yield from open_queue(queue, create=True)
        assert state is not None
        state.now = event.occurred_at_ms
        yield from FOLDS[event.kind](state, event)
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
