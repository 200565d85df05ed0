"""Deficit round robin over a queue's keys, which reads only the keys that it needs.

The rule: keys rotate in lexicographic order, each visit serves one
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

With `charge="cost"` a pick costs what its job does, and the same rule holds. A key
with any credit is served; what the job costs beyond it is a debt. Each round pays a debt with one
grant, so the key's turn is the round that ends it, and a refill moves to the first turn that any
key has: rounds in which no key could be served take no time. `docs/design/fair-share.md` proves
the bound.

`choose_in_turn` is an operation: it asks the store for the shares and jobs it needs by name, many
at a time, and returns a `Choice`. It changes nothing; a test drives it with plain lists and
compares it with the rule above, written out in full.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from math import inf

from harn.storage import Ask, Operation, Row, ask
from harn.storage.queue import Board, Choice, Pick, Share
from harn.workers import key_heads
from harn.workers.key_heads import Head, Lane, about, read_heads, read_more
from harn.workers.scheduler_policy import SchedulerPolicy

LAST = "\U0010ffff"
"""Sorts after every key."""
LOOK = "open_shares_and_jobs"
KEYS_AT_ONCE = 32
"""Up to so many keys that could be served are read all at once."""


def choose_in_turn(
    policy: SchedulerPolicy, board: Board, wanted: int, seen: list[Row] | None = None
) -> Operation[Choice]:
    """Choose *wanted* jobs, key by key; *seen* has the rows of `LOOK`, if they were asked ahead."""
    table = _Table(policy, board, wanted)
    yield from table.look_around(seen)
    while table.left:
        table.serve_known()
        if not table.left or not (yield from table.serve_next()):
            break
    return table.choice()


def _with_jobs(both: Ask, alone: Ask) -> Operation[list[Row]]:
    """List shares with their jobs; *alone*, where the engine does not return both together."""
    rows: list[Row] | None = yield both
    if rows is None:
        rows = [(*row, None) for row in (yield alone)]
    return rows


def _shares_of(rows: Sequence[Row]) -> list[Share]:
    """Return the shares in *rows*, which has a row for every job of a share."""
    return [Share(*row[:8]) for row in {row[0]: row for row in rows}.values()]


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
            wanted = {**about(board), "limit": KEYS_AT_ONCE + 1, "wanted": self.left}
            alone = ask("open_shares", queue_id=board.queue_id, limit=KEYS_AT_ONCE + 1)
            rows = yield from _with_jobs(Ask(LOOK, wanted, is_optional=True), alone)
        age = self._policy.starvation_age_ms
        before = board.now - age if age else -1
        shares = _shares_of(rows)
        if len(shares) <= KEYS_AT_ONCE:
            self._knows_all = self._seen_all = True
            self._look_at(shares)
            self._add_jobs_in(rows)
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
        lanes = self._lanes
        ring, round, place = self._ring, self._round, bisect_right(self._ring, self._last)
        while self.left:
            if not ring:
                if not self._knows_all or not self._refill_known():
                    return
                ring, round = self._ring, self._round
                place = bisect_right(ring, self._last)
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
        if self._knows_all:
            return self._refill_known()
        before = self._round
        while (round := (yield from self._coming_round())) is not None:
            self._round = round
            self._ring = sorted(
                key
                for key, lane in self._lanes.items()
                if lane.is_open and lane.share.credit_in(round, lane.full) > 0
            )
            if round >= self._horizon:
                self._look_from(self._last)
                while not self._ring and not self._seen_all:
                    yield from self._look_further()
            if self._ring:
                return True
        self._round = before
        return False

    def _refill_known(self) -> bool:
        """Do what `_refill` does, without a question: every key was read."""
        opened = [lane for lane in self._lanes.values() if lane.is_open]
        round = self._round
        while turns := [turn for lane in opened if (turn := lane.share.turn) and turn > round]:
            round = min(turns)
            ring = [lane.share.key for lane in opened if lane.share.credit_in(round, lane.full) > 0]
            if ring:
                ring.sort()
                self._round, self._ring = round, ring
                return True
        return False

    def _coming_round(self) -> Operation[int | None]:
        """Return the next round in which a key may be served; None if there is none."""
        following = self._round + 1
        self._horizon = max(self._horizon, following)  # this round was read to its end
        if not self._costs and self._round > self._board.round:
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
        size = min(key_heads.CHUNK, 1 + max(1, self.left))
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
        refill, credit = 0, share.credit_in(round, lane.full)
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
        size = min(key_heads.CHUNK, max(1, self.left))
        wrapped, at = self._frontier
        wanted = {
            "queue_id": self._board.queue_id,
            "turn": self._round if self._costs else min(self._round, self._board.round + 1),
            "after": at,
            "until": self._base if wrapped else LAST,
            "limit": size,
        }
        both = Ask(
            "shares_in_turn_and_jobs",
            {**wanted, **about(self._board), "wanted": self.left},
            is_optional=True,
        )
        rows = yield from _with_jobs(both, ask("shares_in_turn", **wanted))
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
        self._add_jobs_in(fresh)

    def _look_at(self, shares: Sequence[Share]) -> list[Lane]:
        lanes = [Lane(share, self._policy.full_credit(share.key)) for share in shares]
        for lane in lanes:
            self._lanes[lane.share.key] = lane
            if lane.share.credit_in(self._round, lane.full) > 0:
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

    def _add_jobs_in(self, rows: Sequence[Row]) -> None:
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
