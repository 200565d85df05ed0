"""One transaction of the limiter: correct, admit, queue, for everybody who came meanwhile.

A process gathers what its callers want and carries it out in one operation. Nothing here waits:
whoever cannot be admitted gets a ticket, and is told when to ask again.

Order is by ticket. A request may only be admitted when no lower ticket stands in any line that it
would charge, in whichever process. A ticket belongs to its process (the *owner*), which renews a
lease while it has any; an owner whose lease has run out, or whose process is known to be gone,
loses all its places. Whoever wakes from the dead keeps its number and joins again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harn.ratelimit.records import (
    Asking,
    Correction,
    Done,
    Granted,
    Refused,
    Remembered,
    Verdict,
    Waits,
    Want,
    Work,
)
from harn.ratelimit.rules import Row, Rule
from harn.ratelimit.window import Window, open_window, time_freed
from harn.storage import Operation, limits

LEASE_US = 3_000_000
"""How long the tickets of a process stand after its last sign of life."""
AHEAD = 256
"""Tickets looked at to tell how long the line is."""
PAGE = 16
MOST_ROWS = 4096
"""Rows walked to tell when there will be room; beyond, the answer is too early, never too late."""
MOST_REMEMBERED = 256
PRUNE_FROM = 64
PRUNE_MOST = 512


def carry_out(
    work: Work, read_now: Callable[[], int] | None, is_gone: Callable[[str], bool]
) -> Operation[Done]:
    """Carry *work* out; the store's own time counts unless *read_now* gives another."""
    keys = set(_keys(work))
    windows: dict[str, Window] = {}
    remembered = work.remembered
    if remembered is not None:
        remembered = yield from _still_true(remembered)
        windows = {key: found for key in keys if (found := remembered.windows.get(key))}
    lined = False
    if len(windows) < len(keys):
        for row in (yield from limits.lock_buckets(sorted(keys - windows.keys()))):
            windows[row[1]] = open_window(row)
            lined = lined or bool(row[-1])
    if work.leaving:
        yield from limits.leave(
            [(windows[want.key].id, ticket) for ticket, wants in work.leaving for want in wants]
        )
    server_now: int | None = None
    heads: dict[int, limits.Head] = {}
    if lined:
        ids = [window.id for window in windows.values()]
        server_now, heads = yield from limits.line_heads(ids)
    if read_now is not None:
        now = read_now()
    else:
        now = server_now if server_now is not None else (yield from limits.server_time())
    turn = Turn(work.owner, now, windows, heads, is_gone)
    turn.known = work.known
    done = yield from turn.carry_out(work)
    if remembered is not None and not lined:
        if len(remembered.windows) > MOST_REMEMBERED:
            remembered.windows.clear()
        remembered.windows.update(windows)
        done.remembered = remembered
    return done


def _still_true(remembered: Remembered) -> Operation[Remembered]:
    """Return *remembered*, or nothing of it if somebody else has written since."""
    version = yield from limits.version()
    return remembered if version == remembered.version else Remembered(version, {})


def _keys(work: Work) -> Iterator[str]:
    for asking in work.asking:
        for want in asking.wants:
            yield want.key
    for correction in work.corrections:
        yield correction.want.key
    for pause in work.pauses:
        yield from pause.keys
    for want in work.standing:
        yield want.key
    for places in (work.leaving, work.rejoining):
        for _, wants in places:
            for want in wants:
                yield want.key


class Turn:
    """The buckets at one instant, and what this operation has done to them so far."""

    def __init__(
        self,
        owner: str,
        now: int,
        windows: dict[str, Window],
        heads: dict[int, limits.Head],
        is_gone: Callable[[str], bool],
    ) -> None:
        self.owner = owner
        self.now = now
        self.windows = windows
        self.heads = heads
        self.is_gone = is_gone
        self.blocked: set[int] = set()
        """Buckets in whose line one of ours now stands."""
        self.places: list[tuple[int, int, str, int, int]] = []
        self.known: frozenset[int] | None = None
        self.joined = False
        self.next_ticket = 0
        self.tickets_left = 0

    def carry_out(self, work: Work) -> Operation[Done]:
        """Take each step in order, then write down what has changed."""
        done = Done(self.now)
        for window in self.windows.values():
            if not window.is_settled(self.now):
                yield from self._settle_in(window)
        for correction in work.corrections:
            done.corrected.append((yield from self._correct(correction)))
        for keys, length in work.pauses:
            for key in keys:
                self.windows[key].pause(self.now + length)
        for ticket, wants in work.rejoining:
            self._join(ticket, wants)
        if self.places:
            yield from self._flush_places()
            yield from self._look_at_lines()
        for want in work.standing:
            if not self._is_named(want):
                yield from self._add_rule(want)
        for number, asking in enumerate(work.asking):
            for want in asking.wants:
                if want.charge and not self._is_named(want):
                    yield from self._add_rule(want)
            verdict: Verdict | None = self._grant_freely(asking)
            if verdict is None:
                verdict = yield from self._decide(asking, len(work.asking) - number)
            done.verdicts.append(verdict)
        yield from self._write(done)
        if work.renews or self.joined:
            known = yield from limits.renew_owner(self.owner, self.now + LEASE_US)
            done.forgotten = not known and work.renews
        return done

    def _settle_in(self, window: Window) -> Operation[None]:
        shift, cut = window.settle_in(self.now)
        yield from self._shift(window, shift)
        if cut is not None and window.head < window.spilled:
            yield from limits.cut_back(window.id, cut)
        if window.has_expired(self.now):
            yield from self._expire(window)
        yield from self._expire_others(window)

    def _shift(self, window: Window, shift: int) -> Operation[None]:
        if shift and window.head < window.spilled:
            yield from limits.shift(window.id, window.head, shift)

    def _is_named(self, want: Want) -> bool:
        """Say that the rule of *want* is named now; False if it must be added first."""
        return self.windows[want.key].name(want.limit, want.span, self.now)

    def _add_rule(self, want: Want) -> Operation[None]:
        window = self.windows[want.key]
        shift = window.add_rule(want.limit, want.span, self.now)
        yield from self._shift(window, shift)
        yield from self._expire_others(window)

    def _expire(self, window: Window) -> Operation[None]:
        count = PAGE
        while True:
            rows = yield from self._rows(window, window.head, count)
            if not rows:
                window.clear()
                return
            if window.drop_expired(rows, self.now):
                return
            count = min(count * 4, 1024)

    def _expire_others(self, window: Window) -> Operation[None]:
        for rule, lag in window.behind(self.now):
            count = PAGE
            while rows := (yield from self._rows(window, rule.head, count)):
                if rule.drop_expired(rows, self.now, lag):
                    break
                count = min(count * 4, 1024)
            window.changed = True

    def _correct(self, correction: Correction) -> Operation[tuple[int, int] | None]:
        want, bucket, seq, at, units = correction
        window = self.windows[want.key]
        if at >= 0 and not at <= self.now < at + want.span:
            return None
        if seq is None:
            if not self._is_named(want):
                yield from self._add_rule(want)
            row = window.take(units, self.now)
            return window.id, row[0]
        if window.id != bucket or seq < window.head:
            return None
        found = yield from self._rows(window, seq, 1)
        if not found or found[0][0] != seq:
            return None
        window.correct(seq, found[0][2], units)
        if seq >= window.spilled:
            window.set_own(seq, units)
        else:
            yield from limits.correct(bucket, seq, units)
        return bucket, seq

    def _rows(self, window: Window, first: int, count: int) -> Operation[list[Row]]:
        """Read rows from number *first* on: those written out, then those in the bucket."""
        if first < window.spilled:
            rows = yield from limits.rows_from(window.id, first, count)
            if rows:
                return rows
        return window.own_rows(first, count)

    def _grant_freely(self, asking: Asking) -> Granted | None:
        """Grant *asking* if there is room and nobody stands in any line: the usual case."""
        wants, ticket, _ = asking
        if self.blocked or self.heads or ticket is not None:
            return None
        windows = [self.windows[want.key] for want in wants]
        return self._charge(windows, wants) if self._fits(windows, wants) else None

    def _decide(self, asking: Asking, left: int) -> Operation[Verdict]:
        wants, ticket, stays = asking
        windows = [self.windows[want.key] for want in wants]
        behind_own = behind = False
        if self.blocked or self.heads:
            for window, want in zip(windows, wants, strict=True):
                if want.charge and window.id in self.blocked:
                    behind_own = True
                elif want.charge and (head := (yield from self._ahead(window, ticket))):
                    behind = True
                    behind_own = behind_own or head.owner == self.owner
        if not (behind or behind_own) and self._fits(windows, wants):
            return (yield from self._grant(windows, wants, ticket))
        if behind and not behind_own and (yield from self._all_fit(windows, wants, ticket)):
            return (yield from self._grant(windows, wants, ticket))
        if behind_own and stays:
            if ticket is None:
                ticket = yield from self._new_ticket(left)
                self._join(ticket, wants)
            self._block(windows, wants)
            return Waits(ticket, None, True)
        until = yield from self._room_at(windows, wants, ticket, behind or behind_own)
        wait = max(0, until - self.now)
        if stays:
            if ticket is None:
                ticket = yield from self._new_ticket(left)
                self._join(ticket, wants)
            self._block(windows, wants)
            return Waits(ticket, wait, behind)
        if ticket is not None:
            yield from self._leave(windows, wants, ticket)
        return Refused(wait)

    def _fits(self, windows: Sequence[Window], wants: Sequence[Want]) -> bool:
        for window, want in zip(windows, wants, strict=True):
            if window.paused_us > self.now:
                return False
            if want.charge and not window.has_room(want.charge):
                return False
        return True

    def _all_fit(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int | None
    ) -> Operation[bool]:
        """Tell whether there is room now for everybody ahead of *ticket* and for itself.

        Those ahead, in other processes, are being woken for it at this moment; waiting for each
        of them in turn would waste the window. Only while they stand in no other line, which
        could hold them up.
        """
        for window, want in zip(windows, wants, strict=True):
            if window.paused_us > self.now:
                return False
            if not want.charge:
                continue
            ahead = yield from self._those_ahead(window, ticket)
            room = window.has_room_for_all(ahead.charge + want.charge)
            if ahead.tickets >= AHEAD or ahead.lines > 1 or not room:
                return False
        return True

    def _those_ahead(self, window: Window, ticket: int | None) -> Operation[limits.Ahead]:
        last = 2**62 if ticket is None else ticket
        return (yield from limits.those_ahead(window.id, last, AHEAD))

    def _ahead(self, window: Window, ticket: int | None) -> Operation[limits.Head | None]:
        """Return who comes before *ticket* in the line of *window*, after removing the dead."""
        while (head := self.heads.get(window.id)) is not None:
            if ticket is not None and head.ticket >= ticket:
                return None
            if head.owner == self.owner:
                if self.known is None or head.ticket in self.known:
                    return head
                yield from limits.leave([(window.id, head.ticket)])
            elif not (yield from self._has_lapsed(head)):
                return head
            else:
                yield from limits.drop_owner(head.owner)
            yield from self._look_at_lines()
        return None

    def _has_lapsed(self, head: limits.Head) -> Operation[bool]:
        if head.until_us is None or head.until_us <= self.now or self.is_gone(head.owner):
            return True
        if head.until_us > self.now + LEASE_US:  # the clock was set back under it
            yield from limits.renew_owner(head.owner, self.now + LEASE_US)
        return False

    def _look_at_lines(self) -> Operation[None]:
        ids = [window.id for window in self.windows.values()]
        _, self.heads = yield from limits.line_heads(ids)

    def _room_at(
        self,
        windows: Sequence[Window],
        wants: Sequence[Want],
        ticket: int | None,
        behind: bool,
    ) -> Operation[int]:
        """Return when all of *wants* will fit, now at the earliest.

        Behind others it is the earliest instant possible, if each of them takes what it asked for.
        """
        until = self.now
        for window, want in zip(windows, wants, strict=True):
            until = max(until, window.paused_us)
            if not want.charge:
                continue
            ahead = (yield from self._those_ahead(window, ticket)).charge if behind else 0
            for rule, end, lacking in window.lacking(want.charge, ahead):
                frees = yield from self._frees_at(window, rule, lacking)
                until = max(until, min(frees, end))
        return until

    def _frees_at(self, window: Window, rule: Rule, lacking: int) -> Operation[int]:
        """Return when *lacking* of the units that count for *rule* will have left its span."""
        lag = window.span - rule.span
        if lacking >= rule.live:
            last = window.own_last()
            if last is None:
                last = yield from limits.last_expiry(window.id, rule.head)
            return (window.tail_us if last is None else last) - lag
        first, count, walked = rule.head, PAGE, 0
        while True:
            rows = yield from self._rows(window, first, count)
            frees, lacking = time_freed(rows, lacking)
            if frees is not None:
                return frees - lag
            walked += len(rows)
            if not rows:
                return window.tail_us - lag
            if walked >= MOST_ROWS:
                return rows[-1][1] - lag
            first, count = rows[-1][0] + 1, min(count * 4, 1024)

    def _grant(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int | None
    ) -> Operation[Granted]:
        granted = self._charge(windows, wants)
        if ticket is not None:
            yield from self._leave(windows, wants, ticket)
        return granted

    def _charge(self, windows: Sequence[Window], wants: Sequence[Want]) -> Granted:
        held: list[tuple[int, int, int] | None] = []
        for window, want in zip(windows, wants, strict=True):
            if not want.charge:
                held.append(None)
                continue
            number, _, units = window.take(want.charge, self.now)
            held.append((window.id, number, units))
        return Granted(self.now, tuple(held))

    def _leave(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int
    ) -> Operation[None]:
        yield from self._flush_places()
        yield from limits.leave(
            [
                (window.id, ticket)
                for window, want in zip(windows, wants, strict=True)
                if want.charge
            ]
        )
        yield from self._look_at_lines()

    def _new_ticket(self, left: int) -> Operation[int]:
        if not self.tickets_left:
            self.next_ticket = yield from limits.take_tickets(left)
            self.tickets_left = left
        self.tickets_left -= 1
        self.next_ticket += 1
        return self.next_ticket - 1

    def _join(self, ticket: int, wants: Sequence[Want]) -> None:
        self.joined = True
        lines = sum(want.charge > 0 for want in wants)
        for want in wants:
            if want.charge:
                window = self.windows[want.key]
                self.places.append((window.id, ticket, self.owner, want.charge, lines))

    def _block(self, windows: Sequence[Window], wants: Sequence[Want]) -> None:
        for window, want in zip(windows, wants, strict=True):
            if want.charge:
                self.blocked.add(window.id)

    def _flush_places(self) -> Operation[None]:
        if self.places:
            yield from limits.join(self.places)
            self.places = []

    def _write(self, done: Done) -> Operation[None]:
        yield from self._flush_places()
        states, spilled = [], []
        for window in self.windows.values():
            done.use.append((window.key, window.live, window.tail_us))
            if not window.changed:
                continue
            if rows := window.spill():
                spilled += [(window.id, *row) for row in rows]
            if window.head - window.kept >= PRUNE_FROM:
                window.kept = min(window.head, window.kept + PRUNE_MOST)
                yield from limits.prune(window.id, window.kept)
            states.append(window.state)
            window.changed = False
        if spilled:
            yield from limits.charge(spilled)
        if states:
            yield from limits.store(states)
