"""The records that a worker queue and its index exchange: states, new jobs, claims, choices.

A job's state is a number in its row. READY jobs can be claimed now, SCHEDULED ones later; PARKED
ones would be ready if their tenant were not paused; CLAIMED and FAILED ones are in flight until
their claim expires; the rest are settled. A READY job may still carry a claim that has expired: its
consumer may renew, ack, fail or release it until another one claims the job.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Literal

import msgspec

from harn.durable_work import StepRecord
from harn.storage.operations import Operation, Rows
from harn.storage.queue.share_turns import Share

PARKED, READY, SCHEDULED, CLAIMED, FAILED, ACKED, PURGED, DEAD, CANCELLED = range(-1, 8)
SETTLED_STATES = (ACKED, PURGED, DEAD, CANCELLED)
STATES = {
    PARKED: "parked",
    READY: "ready",
    SCHEDULED: "scheduled",
    CLAIMED: "claimed",
    FAILED: "failed",
    ACKED: "acked",
    PURGED: "purged",
    DEAD: "dead",
    CANCELLED: "cancelled",
}
PRIORITIES = ("high", "normal", "low")

Dimension = Literal["tenant", "binding", "trigger-id", "tenant-and-binding"]
ClaimAction = Literal["ack", "fail", "release", "renew", "step"]
Settled = Literal["done", "again", "lost"]
"""The result of an action on a claim: carried out, settled before, or superseded."""

_MISSING = "\x02"
_BETWEEN = "\x01"
_FUNCTION = "\x03"


def share_key(
    dimension: str, tenant_id: str | None, binding_key: str | None, trigger_id: str | None
) -> str:
    """Return the key under which a job shares its queue, as stored and sorted.

    Names are printable, so a missing one and the border of a pair are written with control
    characters: no tenant can name them, and pairs sort as pairs.
    """
    if dimension == "tenant":
        return tenant_id if tenant_id is not None else f"_no_tenant{_MISSING}"
    if dimension == "binding":
        return binding_key if binding_key is not None else f"_no_binding{_MISSING}"
    if dimension == "trigger-id":
        return trigger_id if trigger_id is not None else f"_no_trigger{_MISSING}"
    first = share_key("tenant", tenant_id, None, None)
    return f"{first}{_BETWEEN}{share_key('binding', None, binding_key, None)}"


@lru_cache(maxsize=1024)
def shown_key(key: str) -> str:
    """Write a stored key the way people read it.

    >>> shown_key(share_key("tenant-and-binding", None, "review@v1", None))
    '_no_tenant|review@v1'
    """
    return key.replace(_MISSING, "").replace(_BETWEEN, "|").removesuffix("\x04")


@lru_cache(maxsize=1024)
def function_need(function: str) -> str:
    """Return how a claimer says that it knows *function*, among the trigger ids that it knows."""
    return f"{_FUNCTION}{function}"


def function_needed(need: str) -> str | None:
    """Return the function that *need* is about; None if it is a trigger's id."""
    return need.removeprefix(_FUNCTION) if need.startswith(_FUNCTION) else None


class JobDraft(msgspec.Struct, frozen=True, gc=False):
    """A job on its way in: its record, encoded, and what the index needs of it."""

    payload: bytes
    headers: bytes
    priority: int
    tenant_id: str | None
    binding_key: str | None
    trigger_id: str | None
    dedupe_key: str | None
    max_attempts: int
    not_before_ms: int | None = None
    delay_ms: int | None = None
    function: str | None = None
    ticket: str | None = None
    """The name under which the transaction that enqueued it knows the job."""
    cost: int | None = None
    """What it is expected to cost, in millionths; None is 1."""

    @property
    def need(self) -> str:
        """The trigger id or function that a claimer must know; empty if any claimer will do."""
        if self.function is not None:
            return function_need(self.function)
        return self.trigger_id or ""


dedupe_key_of: Callable[[JobDraft], str | None] = attrgetter("dedupe_key")


class ClaimedJob(msgspec.Struct, gc=False):
    """A job and the claim on it, as a claim operation returns them."""

    id: int
    body: bytes
    enqueued_at: int
    attempts: int
    max_attempts: int
    claim_id: str
    expires_at: int
    claimed_at: int


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """A request of a claim's holder: ack, fail, release or renew it, or record a step."""

    action: ClaimAction
    job_id: int
    claim_id: str
    consumer: str
    outcome: bytes = b"null"
    """What the handler returned, as JSON."""
    outcome_omitted: bool = False
    error: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    traceback: str | None = None
    reason: str | None = None
    delay_ms: int | None = None
    """For a release or a failure: how long the job waits from now."""
    ttl_ms: int = 0
    final: bool = False
    """For a failure: the job is dead, whatever attempts are left."""
    handler_ms: int | None = None
    """For an ack or a failure: how long the handler worked."""
    step: StepRecord | None = None
    cost: float | None = None
    """For an ack or a failure: what the attempt really cost."""
    charge: int | None = None
    """That cost under the claimer's policy, in millionths; None leaves the charge as it is."""


class SettlementResult(msgspec.Struct, frozen=True, gc=False):
    """The result of a settlement, and the response that was written for it."""

    settled: Settled
    expires_at: int = 0
    response: dict[str, object] | None = None
    dead: bool = False
    note: str = ""


class Board(msgspec.Struct, frozen=True):
    """The parts of a queue's row that a claimer needs."""

    queue: str
    queue_id: int
    now: int
    dimension: str
    cap: int
    policy: str | None
    round: int
    last_key: str
    promoted: bool
    triggers: str | None = None
    """The trigger ids that this claimer can handle, as a JSON array; None for all."""


class Pick(msgspec.Struct, frozen=True, gc=False):
    """A job that was chosen, and how."""

    id: int
    key: str
    enqueued_at: int
    attempts: int
    max_attempts: int
    body: bytes | None
    """Its record, if it was read together with the choice."""
    round: int
    credit: int
    promoted: bool = False
    charged: int | None = None
    """What it costs, in millionths, where picks cost what their jobs do; None is one credit."""
    refill: int = 0
    """What a round grants its key then, in millionths."""
    path: list[tuple[int, int, int]] | None = None
    """Of a key that is a path: round, credit and refill of each level, from the root on."""


class Choice(msgspec.Struct):
    """What a scheduler chose, and the state that it leaves behind."""

    picks: list[Pick]
    round: int
    last_key: str
    promoted: bool
    shares: list[Share]
    """The shares that were served, as they are afterwards."""
    nodes: Sequence[Any] = ()
    """The nodes of a tree that were served, as they are afterwards."""


Choose = Callable[[Board, int, Rows | None], Operation[Choice]]
"""Choose jobs from a board: at most so many, given the answers ahead; it asks for the rest."""
