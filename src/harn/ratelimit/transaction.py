"""One transaction of the limiter: correct reservations, then grant, queue or refuse requests.

A process collects what its callers want and carries it out in one operation. Nothing here waits: a
request that cannot be granted gets a ticket, and is told when to ask again.

Requests are served in the order of their tickets. A request is granted only when no lower ticket
of any process is in a line of a bucket that it would charge (`ticket_lines.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from harn.ratelimit.records import (
    Asking,
    Correction,
    Done,
    Granted,
    LimiterWork,
    NoRoom,
    Pause,
    Remembered,
    Verdict,
    Waits,
    Want,
)
from harn.ratelimit.stored_window import add_rule, bring_up_to_date, correct_row, freed_at
from harn.ratelimit.ticket_lines import AHEAD, LEASE_US, TicketLines
from harn.ratelimit.window import Window, open_window
from harn.storage import Operation, limits

MOST_REMEMBERED = 256
"""Windows that are remembered from one operation to the next."""
PRUNE_FROM = 64
"""Expired rows that a bucket has in the store before some are deleted."""
PRUNE_MOST = 512
"""Expired rows of a bucket that one transaction deletes, so that none takes long."""


def carry_out(
    work: LimiterWork, read_now: Callable[[], int] | None, is_gone: Callable[[str], bool]
) -> Operation[Done]:
    """Carry out *work* at the time of *read_now*, or at the store's own time without it."""
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
    lines = TicketLines(work.owner, now, windows, heads, is_gone, work.known)
    done = yield from Transaction(now, windows, lines).carry_out(work)
    if remembered is not None and not has_lines:
        done.remembered = _remember(remembered, windows)
    return done


def _read_windows(keys: set[str], windows: dict[str, Window]) -> Operation[bool]:
    """Add the missing windows of *keys*; tell whether a ticket is in the line of one of them."""
    has_lines = False
    for row in (yield from limits.lock_buckets(sorted(keys - windows.keys()))):
        windows[row[1]] = open_window(row)
        has_lines = has_lines or bool(row[-1])
    return has_lines


def _time(server_now: int | None) -> Operation[int]:
    """Return the store's own time, which was read along with the lines if there are any."""
    return server_now if server_now is not None else (yield from limits.server_time())


def _remember(remembered: Remembered, windows: dict[str, Window]) -> Remembered:
    if len(remembered.windows) > MOST_REMEMBERED:
        remembered.windows.clear()
    remembered.windows.update(windows)
    return remembered


def _still_true(remembered: Remembered) -> Operation[Remembered]:
    """Return *remembered*, emptied if another connection has written since."""
    version = yield from limits.version()
    return remembered if version == remembered.version else Remembered(version, {})


def _keys(work: LimiterWork) -> Iterator[str]:
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
    """The buckets at one instant, and what this transaction has done to them so far."""

    def __init__(self, now: int, windows: dict[str, Window], lines: TicketLines) -> None:
        self.now = now
        self.windows = windows
        self.lines = lines

    def carry_out(self, work: LimiterWork) -> Operation[Done]:
        """Carry out each part of *work* in order, then write what has changed."""
        done = Done(self.now)
        for window in self.windows.values():
            if not window.is_settled(self.now):
                yield from bring_up_to_date(window, self.now)
        # Corrections come first: the units that they free can be granted below.
        for correction in work.corrections:
            done.corrected.append((yield from self._correct(correction)))
        if work.pauses:
            self._pause(work.pauses)
        if work.rejoining:
            yield from self.lines.rejoin(work.rejoining)
        if work.standing:
            yield from self._name_rules(work.standing)
        for number, asking in enumerate(work.asking):
            yield from self._name_rules(asking.wants)
            verdict: Verdict | None = self._grant_freely(asking)
            if verdict is None:
                verdict = yield from self._decide(asking, len(work.asking) - number)
            done.verdicts.append(verdict)
        yield from self._write(done)
        if work.renews or self.lines.has_joined:
            known = yield from limits.renew_owner(work.owner, self.now + LEASE_US)
            done.forgotten = not known and work.renews
        return done

    def _pause(self, pauses: Sequence[Pause]) -> None:
        for keys, length in pauses:
            for key in keys:
                self.windows[key].pause(self.now + length)

    def _name_rules(self, wants: Sequence[Want]) -> Operation[None]:
        """Record that the rules of *wants* are named now, and add those that are new."""
        for want in wants:
            window = self.windows[want.key]
            if want.charge and not window.name(want.limit, want.span, self.now):
                yield from add_rule(window, want, self.now)

    def _correct(self, correction: Correction) -> Operation[tuple[int, int] | None]:
        want, at = correction.want, correction.at
        window = self.windows[want.key]
        if at >= 0 and not at <= self.now < at + want.span:
            return None
        if correction.seq is not None:
            return (yield from correct_row(window, correction))
        if not window.name(want.limit, want.span, self.now):
            yield from add_rule(window, want, self.now)
        return window.id, window.take(correction.units, self.now)[0]

    def _grant_freely(self, asking: Asking) -> Granted | None:
        """Grant *asking* if there is room and no ticket is in any line: the usual case."""
        wants, ticket, _ = asking
        if self.lines.blocked or self.lines.heads or ticket is not None:
            return None
        windows = [self.windows[want.key] for want in wants]
        return self._charge(windows, wants) if self._fits(windows, wants) else None

    def _decide(self, asking: Asking, left: int) -> Operation[Verdict]:
        """Grant *asking*, or let it wait in line, or refuse it; *left* requests are undecided."""
        wants, ticket, stays = asking
        windows = [self.windows[want.key] for want in wants]
        behind_own, behind_other = yield from self.lines.before(windows, wants, ticket)
        is_behind = behind_own or behind_other
        if not is_behind and self._fits(windows, wants):
            return (yield from self._grant(windows, wants, ticket))
        if is_behind and not behind_own and (yield from self._all_fit(windows, wants, ticket)):
            return (yield from self._grant(windows, wants, ticket))
        if stays and behind_own:
            # The answer to the earlier request of this process tells when to ask again for both.
            ticket = yield from self.lines.wait(windows, wants, ticket, left)
            return Waits(ticket, None, True)
        until = yield from self._room_at(windows, wants, ticket, is_behind)
        wait = max(0, until - self.now)
        if stays:
            ticket = yield from self.lines.wait(windows, wants, ticket, left)
            return Waits(ticket, wait, behind_other)
        if ticket is not None:
            yield from self.lines.leave(windows, wants, ticket)
        return NoRoom(wait)

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
        """Tell whether there is room now for the request and for all tickets before it.

        Other processes ask again for those tickets at this moment; to wait for one after the other
        would leave units unused. A ticket that is also in another line may have to wait there, so
        then this is false.
        """
        for window, want in zip(windows, wants, strict=True):
            if window.paused_us > self.now:
                return False
            if not want.charge:
                continue
            ahead = yield from self.lines.tickets_before(window, ticket)
            room = window.has_room_for_all(ahead.charge + want.charge)
            if ahead.tickets >= AHEAD or ahead.lines > 1 or not room:
                return False
        return True

    def _room_at(
        self,
        windows: Sequence[Window],
        wants: Sequence[Want],
        ticket: int | None,
        is_behind: bool,
    ) -> Operation[int]:
        """Return when all of *wants* will fit, now at the earliest.

        Behind other tickets this is the earliest time possible: each of them may be charged what
        it asked for.
        """
        until = self.now
        for window, want in zip(windows, wants, strict=True):
            until = max(until, window.paused_us)
            if not want.charge:
                continue
            ahead = 0
            if is_behind:
                ahead = (yield from self.lines.tickets_before(window, ticket)).charge
            for rule, end, lacking in window.lacking(want.charge, ahead):
                frees = yield from freed_at(window, rule, lacking)
                until = max(until, min(frees, end))
        return until

    def _grant(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int | None
    ) -> Operation[Granted]:
        granted = self._charge(windows, wants)
        if ticket is not None:
            yield from self.lines.leave(windows, wants, ticket)
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

    def _write(self, done: Done) -> Operation[None]:
        if self.lines.has_joined:
            yield from self.lines.write_places()
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
