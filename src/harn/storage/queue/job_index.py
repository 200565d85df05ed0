"""The queue index beside the log: the rows of jobs, and the sums of each key's share.

Live operations (`claim.py`) decide, append the records, and change the index in the same
transaction, many jobs at a time. `job_fold.py` makes the same changes from records read back from
the log, so a rebuilt index equals the live one. Changes that only time brings (`expire.py`) have a
record too, written by the process that notices them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from harn.storage.operations import Ask, Operation, Row, ask_ahead, ask_many
from harn.storage.queue.job_records import CLAIMED, FAILED, PARKED, READY, SCHEDULED
from harn.storage.queue.queue_row import QueueState
from harn.storage.queue.share_tree import shift_tree
from harn.topics import queue_topics

BATCH = 500
"""Jobs that one statement lists or changes at most."""
ACK_HELD = "ack_held"
GROW_COLUMNS = (
    *("queue_id", "key", "ready", "scheduled", "round", "at", "cap", "deferrals", "parked"),
)
SHIFT_COLUMNS = (
    *("queue_id", "key", "ready", "scheduled", "in_flight", "selected"),
    *("round", "cap", "at", "deferrals", "parked"),
)
FREE_COLUMNS = ("queue_id", "key", "in_flight", "round", "cap", "at", "deferrals")


class JobRow(msgspec.Struct):
    """A job's row, as far as settling it needs it."""

    id: int
    key: str
    state: int
    wake_at: int | None
    attempts: int
    max_attempts: int
    claim_id: str | None
    held: int
    history: str | None
    claim_round: int | None = None
    """The scheduler's round in which it was claimed last."""
    tenant_id: str | None = None
    consumer: str | None = None
    charged: int | None = None
    """What its last claim was charged, in millionths; None if that was one credit."""


_PLACES = {READY: 0, SCHEDULED: 1, CLAIMED: 2, FAILED: 2, PARKED: 4}
"""Which of a share's sums counts a job, by its state; settled jobs are not counted."""


class Shifts(msgspec.Struct):
    """Work that moves between ready, scheduled, in flight and parked, summed up by key."""

    _by_key: dict[str, list[int]] = {}
    _gained: list[str] = []
    """The keys of jobs that became ready, in their order."""

    def add(
        self, key: str, *, ready: int = 0, scheduled: int = 0, in_flight: int = 0, selected: int = 0
    ) -> None:
        """Note that the share *key* gains so much of each."""
        sums = self._by_key.setdefault(key, [0, 0, 0, 0, 0])
        sums[0] += ready
        sums[1] += scheduled
        sums[2] += in_flight
        sums[3] += selected

    def move(self, key: str, was: int, to: int) -> None:
        """Note that a job of *key* goes from one state to another."""
        sums = self._by_key.setdefault(key, [0, 0, 0, 0, 0])
        before, after = _PLACES.get(was), _PLACES.get(to)
        if before is not None:
            sums[before] -= 1
        if after is not None:
            sums[after] += 1
        if to == READY and was != READY:
            self._gained.append(key)

    def apply(self, state: QueueState) -> Operation[None]:
        """Write the sums."""
        rounds: dict[str, int] = {}
        if self._gained and state.rotates:
            for key in self._gained:
                rounds.setdefault(key, state.next_turn())
        freed: list[Row] = []
        moved: list[Row] = []
        for key, sums in sorted(self._by_key.items()):
            now = (rounds.get(key, state.round), state.cap, state.now, state.deferrals)
            if any((sums[0], sums[1], sums[3], sums[4])):
                moved.append((state.queue_id, key, *sums[:4], *now, sums[4]))
            elif sums[2]:
                freed.append((state.queue_id, key, sums[2], *now))
        if freed:
            yield ask_many("free_shares", FREE_COLUMNS, freed)
        if moved:
            yield ask_many("shift_shares", SHIFT_COLUMNS, moved)
        if state.hierarchy:
            work = sorted(self._by_key.items())
            yield from shift_tree(state, [(key, sums[0], sums[2]) for key, sums in work])


def ack_held(queue: str, claims: Mapping[int, str]) -> Ask:
    """Return the question, asked ahead, that acks the jobs whose *claims* (by job id) still hold.

    Its answer is the id and the key of each acked job, in the order of their responses, and the
    time. The shares of these jobs are already changed.
    """
    responses = queue_topics(queue).responses
    return ask_ahead(
        ACK_HELD, queue=queue, responses=responses, ids=[*claims], claim_ids=[*claims.values()]
    )
