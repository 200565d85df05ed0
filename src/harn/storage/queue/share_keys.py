"""The keys of a queue's shares: which they are, their cap, what a pick costs, when idle ones go."""

from __future__ import annotations

from harn.storage.operations import Operation, Row, ask, ask_many
from harn.storage.queue.job_index import BATCH, GROW_COLUMNS, JobRow
from harn.storage.queue.job_records import share_key
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.share_tree import rebuild_tree

IDLE_SHARES = 256
"""Idle keys whose counters are still shown one by one."""


def adopt_policy(state: QueueState, policy: str) -> Operation[None]:
    """Let *policy*, as claimers write it, be the queue's own."""
    state.policy = policy
    yield ask("set_policy", queue_id=state.queue_id, policy=policy)


def change_shares(
    state: QueueState, dimension: str, cap: int, charge: str, hierarchy: str
) -> Operation[None]:
    """Let the queue's shares be made as a claimer's policy asks."""
    yield from change_keys(state, dimension)
    yield from change_cap(state, cap)
    yield from change_charge(state, charge)
    yield from change_hierarchy(state, hierarchy)
    yield from rebuild_tree(state)


def change_keys(state: QueueState, dimension: str) -> Operation[None]:
    """Change the dimension of a queue's keys: every unsettled job moves to another share."""
    if state.dimension == dimension:
        return
    state.dimension, state.last_key, state.promoted = dimension, "", 0
    yield ask("set_dimension", queue_id=state.queue_id, dimension=dimension)
    after = 0
    while rows := (
        yield ask("unsettled_origins", queue_id=state.queue_id, after=after, limit=BATCH)
    ):
        after = rows[-1][0]
        keyed: list[Row] = [
            (state.queue_id, id, share_key(dimension, *origin)) for id, *origin in rows
        ]
        yield ask_many("rekey_jobs", ("queue_id", "id", "key"), keyed)
    yield ask("forget_shares", queue_id=state.queue_id)
    yield ask("count_shares", queue_id=state.queue_id)
    yield from apply_cap(state)


def refresh_key(state: QueueState, job: JobRow) -> Operation[None]:
    """Set the key of *job* again: the queue's dimension may have changed while it was settled."""
    [row] = yield ask("one_job", queue_id=state.queue_id, id=job.id)
    tenant_id, binding_key, trigger_id = row[13:16]
    job.key = share_key(state.dimension, tenant_id, binding_key, trigger_id)
    keyed: list[Row] = [(state.queue_id, job.id, job.key)]
    yield ask_many("rekey_jobs", ("queue_id", "id", "key"), keyed)
    # The share may have been removed: it is made again, with nothing in it.
    now = state.now
    empty = (state.queue_id, job.key, 0, 0, state.round, now, state.cap, state.deferrals, 0)
    yield ask_many("grow_shares", GROW_COLUMNS, [empty])


def change_cap(state: QueueState, cap: int) -> Operation[None]:
    """Let at most *cap* claims of a key be in flight from now on; 0 is no cap."""
    if cap != state.cap:
        state.cap = cap
        yield ask("set_cap", queue_id=state.queue_id, cap=cap)
        yield from apply_cap(state)


def change_charge(state: QueueState, charge: str) -> Operation[None]:
    """Let a pick cost one credit (`jobs`) or what its job costs (`cost`) from now on.

    Credits of one kind mean nothing in the other: every key begins again with the next round.
    """
    if charge != state.charge:
        state.charge = charge
        yield ask("set_charge", queue_id=state.queue_id, charge=charge)
        yield ask("reset_credit", queue_id=state.queue_id, round=state.round)


def change_hierarchy(state: QueueState, separator: str) -> Operation[None]:
    """Let keys be paths of names between *separator*, or no paths if it is empty.

    A tree has credits of its own: in the flat rotation every key begins again with the next round.
    """
    if separator != state.hierarchy:
        state.hierarchy = separator
        yield ask("set_hierarchy", queue_id=state.queue_id, hierarchy=separator)
        yield ask("reset_credit", queue_id=state.queue_id, round=state.round)


def apply_cap(state: QueueState) -> Operation[None]:
    """Reconsider which keys can be served under the state's cap."""
    yield ask(
        "apply_cap",
        queue_id=state.queue_id,
        cap=state.cap,
        round=state.round,
        deferrals=state.deferrals,
    )


def drop_idle(state: QueueState) -> Operation[None]:
    """Remove the keys idle longest, when there are many; the queue keeps their counters."""
    if state.hierarchy:
        yield ask("drop_idle_nodes", queue_id=state.queue_id)
    gone = yield ask("drop_idle_shares", queue_id=state.queue_id, keep=IDLE_SHARES)
    if gone:
        yield ask(
            "keep_dropped",
            queue_id=state.queue_id,
            selected=sum(row[0] for row in gone),
            deferred=sum(row[1] for row in gone),
        )
