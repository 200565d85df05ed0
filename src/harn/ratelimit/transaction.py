"""One transaction of the limiter: correct, admit, queue, for all callers that came meanwhile.

A process gathers what its callers want and carries it out in one operation. Nothing here waits: a
request that cannot be admitted gets a ticket, and is told when to ask again.

Order is by ticket. A request may only be admitted when no lower ticket of any process stands in a
line that it would charge. A ticket belongs to its process (the *owner*), which renews a lease
while it has tickets. An owner whose lease has expired, or whose process is known to have ended,
loses all its tickets. A process that was only silent for long keeps its numbers and joins again.
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
from harn.ratelimit.stored_window import add_rule, bring_up_to_date, correct_row, freed_at
from harn.ratelimit.window import Window, open_window
from harn.storage import Operation, limits

LEASE_US = 3_000_000
"""How long the tickets of a process stand after its last sign of life."""
AHEAD = 256
"""Tickets looked at to tell how long the line is."""
MOST_REMEMBERED = 256
PRUNE_FROM = 64
PRUNE_MOST = 512


def carry_out(
    work: Work, read_now: Callable[[], int] | None, is_gone: Callable[[str], bool]
) -> Operation[Done]:
    """Carry *work* out; the store's own time counts unless *read_now* gives another."""
    keys = set(_keys(work))
    remembered = work.remembered
    windows: dict[str, Window] = {}
    if remembered is not None:
        remembered = yield from _still_true(remembered)
        windows = {key: found for key in keys if (found := remembered.windows.get(key))}
    has_lines = False
    if len(windows) < len(keys):
        has_lines = yield from _read_windows(keys, windows)
    if work.leaving:
        yield from limits.leave(
            [(windows[want.key].id, ticket) for ticket, wants in work.leaving for want in wants]
        )
    server_now: int | None = None
    heads: dict[int, limits.Head] = {}
    if has_lines:
        server_now, heads = yield from limits.line_heads([each.id for each in windows.values()])
    now = (yield from _time(server_now)) if read_now is None else read_now()
    transaction = Transaction(work.owner, now, windows, heads, is_gone, work.known)
    done = yield from transaction.carry_out(work)
    if remembered is not None and not has_lines:
        done.remembered = _remember(remembered, windows)
    return done


def _read_windows(keys: set[str], windows: dict[str, Window]) -> Operation[bool]:
    """Add the windows of *keys* that are missing; tell whether a ticket stands in their lines."""
    has_lines = False
    for row in (yield from limits.lock_buckets(sorted(keys - windows.keys()))):
        windows[row[1]] = open_window(row)
        has_lines = has_lines or bool(row[-1])
    return has_lines


def _time(server_now: int | None) -> Operation[int]:
    """Return the store's own time, which the lines may have brought along."""
    return server_now if server_now is not None else (yield from limits.server_time())


def _remember(remembered: Remembered, windows: dict[str, Window]) -> Remembered:
    if len(remembered.windows) > MOST_REMEMBERED:
        remembered.windows.clear()
    remembered.windows.update(windows)
    return remembered


def _still_true(remembered: Remembered) -> Operation[Remembered]:
    """Return *remembered*, or nothing of it if another connection has written since."""
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


class Transaction:
    """The buckets at one instant, and what this operation has done to them so far."""

    def __init__(
        self,
        owner: str,
        now: int,
        windows: dict[str, Window],
        heads: dict[int, limits.Head],
        is_gone: Callable[[str], bool],
        known: frozenset[int] | None,
    ) -> None:
        self.owner = owner
        self.now = now
        self.windows = windows
        self.heads = heads
        self.is_gone = is_gone
        self.blocked: set[int] = set()
        """Buckets in whose line one of ours now stands."""
        self.places: list[tuple[int, int, str, int, int]] = []
        self.known = known
        self.joined = False
        self.next_ticket = 0
        self.tickets_left = 0

    def carry_out(self, work: Work) -> Operation[Done]:
        """Take each step in order, then write down what has changed."""
        done = Done(self.now)
        for window in self.windows.values():
            if not window.is_settled(self.now):
                yield from bring_up_to_date(window, self.now)
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
                yield from add_rule(self.windows[want.key], want, self.now)
        for number, asking in enumerate(work.asking):
            for want in asking.wants:
                if want.charge and not self._is_named(want):
                    yield from add_rule(self.windows[want.key], want, self.now)
            verdict: Verdict | None = self._grant_freely(asking)
            if verdict is None:
                verdict = yield from self._decide(asking, len(work.asking) - number)
            done.verdicts.append(verdict)
        yield from self._write(done)
        if work.renews or self.joined:
            known = yield from limits.renew_owner(self.owner, self.now + LEASE_US)
            done.forgotten = not known and work.renews
        return done

    def _is_named(self, want: Want) -> bool:
        """Say that the rule of *want* is named now; False if it must be added first."""
        return self.windows[want.key].name(want.limit, want.span, self.now)

    def _correct(self, correction: Correction) -> Operation[tuple[int, int] | None]:
        want, at = correction.want, correction.at
        window = self.windows[want.key]
        if at >= 0 and not at <= self.now < at + want.span:
            return None
        if correction.seq is not None:
            return (yield from correct_row(window, correction))
        if not self._is_named(want):
            yield from add_rule(window, want, self.now)
        return window.id, window.take(correction.units, self.now)[0]

    def _grant_freely(self, asking: Asking) -> Granted | None:
        """Grant *asking* if there is room and no ticket stands in any line: the usual case."""
        wants, ticket, _ = asking
        if self.blocked or self.heads or ticket is not None:
            return None
        windows = [self.windows[want.key] for want in wants]
        return self._charge(windows, wants) if self._fits(windows, wants) else None

    def _decide(self, asking: Asking, left: int) -> Operation[Verdict]:
        """Grant *asking*, or let it wait in line, or refuse it; *left* requests are undecided."""
        wants, ticket, stays = asking
        windows = [self.windows[want.key] for want in wants]
        behind_own, behind_other = yield from self._who_is_ahead(windows, wants, ticket)
        is_behind = behind_own or behind_other
        if not is_behind and self._fits(windows, wants):
            return (yield from self._grant(windows, wants, ticket))
        if is_behind and not behind_own and (yield from self._all_fit(windows, wants, ticket)):
            return (yield from self._grant(windows, wants, ticket))
        if stays and behind_own:
            ticket = yield from self._wait_in_line(windows, wants, ticket, left)
            return Waits(ticket, None, True)
        until = yield from self._room_at(windows, wants, ticket, is_behind)
        wait = max(0, until - self.now)
        if stays:
            ticket = yield from self._wait_in_line(windows, wants, ticket, left)
            return Waits(ticket, wait, behind_other)
        if ticket is not None:
            yield from self._leave(windows, wants, ticket)
        return Refused(wait)

    def _who_is_ahead(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int | None
    ) -> Operation[tuple[bool, bool]]:
        """Tell whether a ticket of our own comes first in any line, and whether any stored one."""
        behind_own = behind = False
        if not self.blocked and not self.heads:
            return behind_own, behind
        for window, want in zip(windows, wants, strict=True):
            if not want.charge:
                continue
            if window.id in self.blocked:
                behind_own = True
            elif head := (yield from self._ahead(window, ticket)):
                behind = True
                behind_own = behind_own or head.owner == self.owner
        return behind_own, behind

    def _wait_in_line(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int | None, left: int
    ) -> Operation[int]:
        """Return the ticket to wait with: the one that the request has, or a new one."""
        if ticket is None:
            ticket = yield from self._new_ticket(left)
            self._join(ticket, wants)
        for window, want in zip(windows, wants, strict=True):
            if want.charge:
                self.blocked.add(window.id)
        return ticket

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
        """Tell whether there is room now for all tickets ahead of *ticket* and for itself.

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
        """Return the first in the line of *window* if it is before *ticket*; drop expired ones."""
        while (head := self.heads.get(window.id)) is not None:
            if ticket is not None and head.ticket >= ticket:
                return None
            if head.owner == self.owner:
                if self.known is None or head.ticket in self.known:
                    return head
                yield from limits.leave([(window.id, head.ticket)])
            elif not (yield from self._has_expired(head)):
                return head
            else:
                yield from limits.drop_owner(head.owner)
            yield from self._look_at_lines()
        return None

    def _has_expired(self, head: limits.Head) -> Operation[bool]:
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
                frees = yield from freed_at(window, rule, lacking)
                until = max(until, min(frees, end))
        return until

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
