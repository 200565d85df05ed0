"""Deficit round robin over a queue's keys, which reads only the keys that it needs.

The rule (spec, with rulings 36 to 38): keys rotate in lexicographic order, each visit serves one
job and costs one credit; when no key that could be served has credit left, a new round begins and
every such key is granted `weight * quantum`. A key that runs empty keeps nothing. A key at its
cap of in-flight claims is passed over and keeps what it had. A job older than the starvation age
is promoted over all of that, but pays like any other, and two promotions never follow each other
while another key could be served.

A round must not cost more because a queue has ten thousand keys, so nothing here ever touches
them all. A round is a number. Each share notes the round in which it can be served next, its
*turn*: this one if it has credit, the next one if it has spent it or has just come. Those are the
only two values there can be, because a round ends exactly when no key has credit left. So a
refill is "the round is one higher", and the next key in the rotation is the first row of an index
on (turn, key) after the key served last. A share's credit is written down when it is served; if
it was written in an earlier round, the share has been refilled since.

Where a pick costs what its job does (ruling 66), the same rule holds with another price. A key
with any credit is served; what the job costs beyond it is a debt. Each round pays a debt with one
grant, so the key's turn is the round that ends it, and a refill goes on to the first turn that any
key has: rounds in which no key could be served take no time. `docs/design/fair-share.md` proves
the bound.

`choose` is an operation: it asks the store for the shares and jobs it needs by name, many at a
time, and returns a `Choice`. It changes nothing; a test drives it with plain lists and compares it
with the rule above, written out in full.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

import msgspec

from harn.storage import Ask, Operation, Row, ask, ask_ahead
from harn.storage.queue import Board, Choice, Choose, Pick, Share
from harn.topics import queue_topics
from harn.workers.scheduler_policy import SchedulerPolicy

QUARTER_HOUR_MS = 15 * 60 * 1000
LAST = "\U0010ffff"
"""Sorts after every key."""
CHUNK = 100
LOOK = "open_shares_and_jobs"
HEADS = "queue_heads"
FEW = 32
"""Up to so many keys that could be served are read all at once."""

Head = tuple[int, int, int, int, int | None, bytes | None]
"""A job as the scheduler sees it: its id, when it was enqueued, its attempts, their limit, its cost
in millionths (None: 1), and its record if it was short enough to be read with it."""


def rank(priority: int, age_ms: int) -> int:
    """Return the rank of a job of *priority* (0 high, 1 normal, 2 low) after waiting *age_ms*.

    Every quarter of an hour lifts it by one, up to high.

    >>> rank(1, 14 * 60_000), rank(1, 15 * 60_000), rank(2, 15 * 60_000), rank(2, 30 * 60_000)
    (1, 0, 1, 0)
    """
    return max(0, priority - max(0, age_ms) // QUARTER_HOUR_MS)


def chooser(policy: SchedulerPolicy) -> Choose:
    """Return the function that chooses jobs by *policy*, whose keys are no paths."""
    return partial(_drr if policy.strategy == "drr" else _fifo, policy)


def first_look(policy: SchedulerPolicy, queue: str, wanted: int) -> Ask:
    """Return the question to ask ahead for a claim of *wanted* jobs by *policy*."""
    about = {"queue": queue, "topic": queue_topics(queue).jobs, "triggers": None, "wanted": wanted}
    if policy.strategy == "drr" and not policy.hierarchy:
        return ask_ahead(LOOK, limit=FEW + 1, **about)
    return ask_ahead(HEADS, **about)


def _fifo(
    policy: SchedulerPolicy, board: Board, wanted: int, seen: list[Row] | None = None
) -> Operation[Choice]:
    rows = seen
    if rows is None:
        rows = yield ask(HEADS, wanted=wanted, **_about(board))
    now = board.now
    rows.sort(key=lambda row: (rank(row[0], now - row[2]), row[1]))
    picks = [
        Pick(id, key, at, attempts, most, body, board.round, 0)
        for _, id, at, key, attempts, most, body in rows[:wanted]
    ]
    return Choice(picks, board.round, board.last_key, board.promoted, [])


def _drr(
    policy: SchedulerPolicy, board: Board, wanted: int, seen: list[Row] | None = None
) -> Operation[Choice]:
    table = _Table(policy, board, wanted)
    yield from table.look_around(seen)
    while table.left:
        table.serve_known()
        if not table.left or not (yield from table.serve_next()):
            break
    return table.choice()


class Lane:
    """A share that has been read and, once they are needed, its next jobs of each priority."""

    __slots__ = ("full", "heads", "is_loaded", "last_taken", "more", "only", "served", "share")

    def __init__(self, share: Share, full: int) -> None:
        self.share: Share = share
        self.full: int = full
        self.heads: tuple[deque[Head], deque[Head], deque[Head]] = (deque(), deque(), deque())
        self.more: list[bool] = [True, True, True]
        self.last_taken: list[int] = [0, 0, 0]
        self.is_loaded: bool = False
        self.only: int | None = None
        """The priority of all its jobs, if they have one and were read."""
        self.served: int = 0

    def credit(self, round: int) -> int:
        """Return the credit left in *round*."""
        share = self.share
        if share.refill:
            return share.accrued(round)
        return share.credit if share.round == round else self.full

    def loaded(self, depth: int) -> None:
        """Note that the first *depth* jobs of each priority have been read."""
        self.is_loaded = True
        self.more = [len(heads) == depth for heads in self.heads]
        present = [priority for priority in range(3) if self.heads[priority]]
        self.only = present[0] if len(present) == 1 else None

    @property
    def is_open(self) -> bool:
        """Whether the key is under its cap and, as far as is known, has a job for this claimer."""
        return self.share.turn is not None and (any(self.heads) or any(self.more))

    @property
    def lacks(self) -> int | None:
        """A priority of which more jobs must be read before the next one is known; None if none."""
        for priority in range(3):
            if not self.heads[priority] and self.more[priority]:
                return priority
        return None

    def age(self) -> tuple[int, str]:
        """Return the order of promotions: the oldest job's time, then the key.

        Until every priority has been read it is the earliest time possible.
        """
        known = self.is_loaded and self.lacks is None
        return self.oldest()[1] if known else self.share.oldest_at or 0, self.share.key

    def oldest(self) -> Head:
        """Return the job that has waited longest, whatever its priority."""
        return min((heads[0] for heads in self.heads if heads), key=_by_age)

    def best(self, now: int) -> Head:
        """Return the job that is next by rank, then age."""
        chosen: Head | None = None
        best_rank = 3
        for priority, heads in enumerate(self.heads):
            if heads:
                head = heads[0]
                lifted = rank(priority, now - head[1])
                if lifted < best_rank or (lifted == best_rank and chosen and head < chosen):
                    chosen, best_rank = head, lifted
        assert chosen is not None
        return chosen

    def take(self, head: Head) -> None:
        """Remove *head*, the first of its priority."""
        for priority, heads in enumerate(self.heads):
            if heads and heads[0] == head:
                heads.popleft()
                self.last_taken[priority] = head[0]
                return
        raise AssertionError("not at the head")


def _about(board: Board) -> dict[str, Any]:
    topic = queue_topics(board.queue).jobs
    return {"queue": board.queue, "topic": topic, "triggers": board.triggers}


def _shares_alone(asked: Ask) -> Operation[list[Row]]:
    """List shares without their jobs, for an engine that does not return both together."""
    rows = yield asked
    return [(*row, None) for row in rows]


def _shares_of(rows: Sequence[Row]) -> list[Share]:
    """Return the shares in *rows*, which has a row for every job of a share."""
    return [Share(*row[:8]) for row in {row[0]: row for row in rows}.values()]


def _heads_by_key(board: Board, keys: Sequence[str], depth: int) -> Operation[list[Row]]:
    """List the first ready jobs of *keys*, one key and priority after the other."""
    about = {"queue_id": board.queue_id, **_about(board)}
    rows: list[Row] = []
    present = yield ask("ready_priorities", queue_id=board.queue_id)
    for key in keys:
        for (priority,) in present:
            found = yield ask(
                "ready_after", key=key, priority=priority, after=0, depth=depth, **about
            )
            rows += [(key, priority, *row) for row in found]
    return rows


def _by_age(head: Head) -> tuple[int, int]:
    return head[1], head[0]


class _Table:
    """One claim's view of the rotation: the shares it has read, and the jobs it has chosen."""

    def __init__(self, policy: SchedulerPolicy, board: Board, wanted: int) -> None:
        self.left = wanted
        self._policy = policy
        self._cap = policy.max_concurrent_per_key
        self._costs = policy.charges_cost
        self._board = board
        self._round = board.round
        self._last = board.last_key
        self._promoted = board.promoted
        self._lanes: dict[str, Lane] = {}
        self._ring: list[str] = []  # keys looked at that have credit in this round, sorted
        self._starving: deque[Share] = deque()
        self._starved_before = -1
        self._knows_all = False
        self._horizon: float = board.round  # all shares whose turn is before it have been read
        self._picks: list[Pick] = []
        self._look_from(board.last_key)

    def choice(self) -> Choice:
        """Return what was chosen."""
        shares = []
        for lane in self._lanes.values():
            share = lane.share
            if share.turn is not None and share.turn < self._round:
                share.turn = self._round  # a round ended while it was passed over: refilled too
                shares.append(share)
            elif lane.served:
                shares.append(share)
            if lane.served and self._board.triggers is None and lane.lacks is None:
                share.oldest_at = min([heads[0][1] for heads in lane.heads if heads], default=None)
                share.knows_oldest = True
        return Choice(self._picks, self._round, self._last, self._promoted, shares)

    def look_around(self, seen: list[Row] | None) -> Operation[None]:
        """Read all keys that can be served if they are few, else those with the oldest jobs.

        Keys that starve are among them.
        """
        board = self._board
        rows = seen
        if rows is None:
            about = {**_about(board), "limit": FEW + 1, "wanted": self.left}
            alone = ask("open_shares", queue_id=board.queue_id, limit=FEW + 1)
            rows = yield Ask(LOOK, about, steps=partial(_shares_alone, alone))
        age = self._policy.starvation_age_ms
        before = board.now - age if age else -1
        shares = _shares_of(rows)
        if len(shares) <= FEW:
            self._knows_all = self._seen_all = True
            self._look_at(shares)
            self._brought(rows)
            if any((share.oldest_at or 0) <= before for share in shares):
                self._starved_before = before
        elif age:
            starving = [share for share in shares if (share.oldest_at or 0) <= before]
            if len(starving) == len(shares) and self.left > len(starving):
                starving = yield from self._more_starving(before)
            if starving:
                self._starving.extend(starving)
                self._starved_before = before

    # -- promotion ---------------------------------------------------------------------------

    def _more_starving(self, before: int) -> Operation[list[Share]]:
        rows = yield ask(
            "starving_shares",
            queue_id=self._board.queue_id,
            before=before,
            limit=self.left,
        )
        return [Share(*row) for row in rows]

    def _starving_lane(self) -> Operation[Lane | None]:
        """Return the lane with the oldest job of all, if it has waited too long."""
        while True:
            while self._starving and self._starving[0].key in self._lanes:
                self._starving.popleft()
            found = [
                lane
                for lane in self._lanes.values()
                if lane.is_open and lane.age()[0] <= self._starved_before
            ]
            if self._starving:
                share = self._starving[0]
                if not any(lane.age() < (share.oldest_at or 0, share.key) for lane in found):
                    self._starving.popleft()
                    found += self._look_at([share])
            if not found:
                return None
            lane = min(found, key=Lane.age)
            if lane.lacks is None:
                return lane
            yield from self._load(lane)  # which may change its age

    def _may_promote(self, lane: Lane) -> Operation[bool]:
        if not self._promoted:
            return True
        known = self._lanes
        if any(other.is_open for other in known.values() if other is not lane):
            return False
        if self._knows_all:
            return True
        if any(share.key not in known for share in self._starving):
            return False
        rows = yield ask("open_keys", queue_id=self._board.queue_id, limit=len(known) + 1)
        return all(key in known for (key,) in rows)

    # -- rotation ----------------------------------------------------------------------------

    def serve_next(self) -> Operation[bool]:
        """Choose one more job; return False when no key can be served."""
        if self._starved_before >= 0:
            starving = yield from self._starving_lane()
            if starving is not None and (yield from self._may_promote(starving)):
                self._serve(starving, starving.oldest(), promoted=True)
                return True
        lane = yield from self._next_in_turn()
        if lane is None:
            return False
        self._serve(lane, lane.best(self._board.now), promoted=False)
        return True

    def serve_known(self) -> None:
        """Choose jobs as `serve_next` does, while the next one is known and has no rival.

        That is: nothing starves, and the key has jobs of one priority, read already.
        """
        if self._starved_before >= 0 or not self._seen_all:
            return
        ring, lanes, round = self._ring, self._lanes, self._round
        place = bisect_right(ring, self._last)
        while self.left and ring:
            if place == len(ring):
                place = 0
            lane = lanes[ring[place]]
            if lane.only is None or not (heads := lane.heads[lane.only]):
                return
            head = heads.popleft()
            share = lane.share
            self._pay(lane, head)
            lane.last_taken[lane.only] = head[0]
            self._last, self._promoted = share.key, False
            if share.turn != round or not (heads or lane.more[lane.only]):
                del ring[place]
            else:
                place += 1

    def _next_in_turn(self) -> Operation[Lane | None]:
        while True:
            nearest = self._nearest_known()
            if nearest is not None and (self._seen_all or self._has_seen_up_to(nearest)):
                lane = self._lanes[nearest]
                if lane.lacks is not None:
                    yield from self._load(lane)
                if lane.is_open:
                    return lane
                self._ring.remove(nearest)  # it has no job that this claimer can handle
            elif not self._seen_all:
                yield from self._look_further()
            elif not (yield from self._refill()):
                return None

    def _nearest_known(self) -> str | None:
        if not self._ring:
            return None
        place = bisect_right(self._ring, self._last)
        return self._ring[place if place < len(self._ring) else 0]

    def _refill(self) -> Operation[bool]:
        """Begin a new round, if any key can be served in it."""
        before = self._round
        while (round := (yield from self._coming_round())) is not None:
            self._round = round
            self._ring = sorted(
                key for key, lane in self._lanes.items() if lane.is_open and lane.credit(round) > 0
            )
            if round >= self._horizon:
                self._look_from(self._last)
                while not self._ring and not self._seen_all:
                    yield from self._look_further()
            if self._ring:
                return True
        self._round = before
        return False

    def _coming_round(self) -> Operation[int | None]:
        """Return the next round in which a key may be served; None if there is none."""
        following = self._round + 1
        self._horizon = max(self._horizon, following)  # this round was read to its end
        if self._knows_all or (not self._costs and self._round > self._board.round):
            self._horizon = inf
        coming = self._first_turn()
        while self._horizon < inf and (coming is None or coming >= self._horizon):
            if not self._costs:
                return following  # without debts, a key that was not read has no other turn
            crowded = yield from self._look_ahead()
            coming = self._first_turn()
            if crowded is not None:
                return crowded if coming is None else min(coming, crowded)
        return coming

    def _first_turn(self) -> int | None:
        """Return the first turn after this round of any key that was read."""
        turns = [lane.share.turn for lane in self._lanes.values() if lane.is_open]
        return min((turn for turn in turns if turn and turn > self._round), default=None)

    def _look_ahead(self) -> Operation[int | None]:
        """Read some shares from the horizon on, by their turns, and move the horizon.

        Return the turn of all of them if they have the same one: it may have still more keys.
        """
        size = min(CHUNK, 1 + max(1, self.left))
        rows = yield ask(
            "shares_ahead", queue_id=self._board.queue_id, turn=int(self._horizon), limit=size
        )
        shares = [Share(*row) for row in rows]
        self._look_at([share for share in shares if share.key not in self._lanes])
        if len(shares) < size:
            self._horizon = inf
            return None
        first, last = shares[0].turn, shares[-1].turn
        assert last is not None
        self._horizon = last
        return last if first == last else None

    def _serve(self, lane: Lane, head: Head, *, promoted: bool) -> None:
        share = lane.share
        self._pay(lane, head, promoted=promoted)
        lane.take(head)
        if share.turn != self._round or not lane.is_open:
            self._leave_ring(share.key)
        self._last = share.key
        self._promoted = promoted
        if promoted and not self._seen_all and self._place_of(share.key) > self._frontier:
            self._look_from(share.key)

    def _pay(self, lane: Lane, head: Head, *, promoted: bool = False) -> None:
        """Choose *head*, and charge its key."""
        id, at, attempts, most, cost, body = head
        share, round = lane.share, self._round
        charged: int | None = None
        refill, credit = 0, lane.credit(round)
        if self._costs:
            charged, refill = self._policy.charge_of(cost), lane.full
            credit -= charged
        else:
            credit = max(0, credit - 1)
        share.serve(round, credit, self._cap, refill)
        lane.served += 1
        self.left -= 1
        key = share.key
        self._picks.append(
            Pick(id, key, at, attempts, most, body, round, credit, promoted, charged, refill)
        )

    def _leave_ring(self, key: str) -> None:
        place = bisect_right(self._ring, key) - 1
        if place >= 0 and self._ring[place] == key:
            del self._ring[place]

    # -- what has been read: an arc of the rotation, from the base to the frontier -------------

    def _look_from(self, base: str) -> None:
        self._base = base
        self._frontier = (False, base)
        self._seen_all = False

    def _place_of(self, key: str) -> tuple[bool, str]:
        return key <= self._base, key

    def _has_seen_up_to(self, key: str) -> bool:
        here = (False, "") if self._last == self._base else self._place_of(self._last)
        return here < self._place_of(key) <= self._frontier

    def _look_further(self) -> Operation[None]:
        """Read some more shares that have their turn in this round, and move the frontier."""
        size = min(CHUNK, max(1, self.left))
        wrapped, at = self._frontier
        wanted = {
            "queue_id": self._board.queue_id,
            "turn": self._round if self._costs else min(self._round, self._board.round + 1),
            "after": at,
            "until": self._base if wrapped else LAST,
            "limit": size,
        }
        rows: list[Row] = yield Ask(
            "shares_in_turn_and_jobs",
            {**wanted, **_about(self._board), "wanted": self.left},
            steps=partial(_shares_alone, ask("shares_in_turn", **wanted)),
        )
        shares = _shares_of(rows)
        if len(shares) == size:
            self._frontier = (wrapped, shares[-1].key)
        elif wrapped:
            self._seen_all = True
        else:
            self._frontier = (True, "")
        known = self._lanes.keys()
        fresh = [row for row in rows if row[0] not in known]
        self._look_at([share for share in shares if share.key not in known])
        self._brought(fresh)

    def _look_at(self, shares: Sequence[Share]) -> list[Lane]:
        lanes = [Lane(share, self._policy.full_credit(share.key)) for share in shares]
        for lane in lanes:
            self._lanes[lane.share.key] = lane
            if lane.credit(self._round) > 0:
                insort(self._ring, lane.share.key)
        return lanes

    # -- jobs, fetched when they are needed ------------------------------------------------------

    def _load(self, lane: Lane) -> Operation[None]:
        """Read the next jobs of *lane*; the first time, those of the keys after it as well."""
        if lane.is_loaded:
            yield from read_more(self._board, lane, self.left)
            return
        lanes = [lane, *(each for each in self._coming_up() if each is not lane)][: self.left]
        depth = 1 + max(1, -(-self.left // len(lanes)))  # one more, to know how old the next one is
        yield from read_heads(self._board, lanes, depth)

    def _brought(self, rows: Sequence[Row]) -> None:
        """Add the jobs in *rows*, if the engine returned them together with their shares."""
        depths: dict[str, int] = {}
        for row in rows:
            if row[8] is not None:
                depths[row[0]] = row[8]
                if row[9] is not None:
                    self._lanes[row[0]].heads[row[9]].append(row[10:])
        for key, depth in depths.items():
            self._lanes[key].loaded(depth)

    def _coming_up(self) -> list[Lane]:
        place = bisect_right(self._ring, self._last)
        keys = self._ring[place:] + self._ring[:place]
        return [lane for key in keys if not (lane := self._lanes[key]).is_loaded]


def read_heads(board: Board, lanes: Sequence[Lane], depth: int) -> Operation[None]:
    """Read the first *depth* jobs of each priority of *lanes*."""
    by_key = {lane.share.key: lane for lane in lanes}
    rows: list[Row] = yield Ask(
        "ready_heads",
        {
            "queue_id": board.queue_id,
            **_about(board),
            "depth": depth,
            "keys": msgspec.json.encode([*by_key]).decode(),
        },
        steps=partial(_heads_by_key, board, [*by_key], depth),
    )
    for row in rows:
        by_key[row[0]].heads[row[1]].append(row[2:])
    for lane in lanes:
        lane.loaded(depth)


def read_more(board: Board, lane: Lane, left: int) -> Operation[None]:
    """Read more jobs of each priority of which none is known."""
    while (priority := lane.lacks) is not None:
        depth = min(CHUNK, 1 + max(1, left))
        rows = yield ask(
            "ready_after",
            key=lane.share.key,
            priority=priority,
            after=lane.last_taken[priority],
            depth=depth,
            queue_id=board.queue_id,
            **_about(board),
        )
        lane.heads[priority].extend(rows)
        lane.more[priority] = len(rows) == depth
