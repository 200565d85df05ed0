"""The lines of tickets in which requests of all processes wait, within one transaction.

Each bucket has a line, ordered by ticket number. A ticket belongs to a process (its *owner*), which
renews a lease while it has tickets. An owner whose lease has expired, or whose process is known to
have ended, loses all its tickets. A process that was only silent for too long keeps its numbers and
joins its lines again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from harn.ratelimit.records import Want
from harn.ratelimit.window import Window
from harn.storage import Operation, limits

LEASE_US = 3_000_000
"""Microseconds that the tickets of a process stay in line after its last renewal."""
AHEAD = 256
"""Tickets ahead of a request that are read to sum up their charges."""


class TicketLines:
    """The lines of the buckets that one transaction has locked.

    *heads* holds the first ticket of each line that has one, by the bucket's id. *known* are all
    tickets of *owner* that its callers still wait with; None if the store can hold no others.
    """

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
        self.heads: dict[int, limits.Head] = heads
        self.is_gone = is_gone
        self.known = known
        self.blocked: set[int] = set()
        """Buckets in whose line a request of this transaction waits."""
        self.has_joined: bool = False
        self._places: list[tuple[int, int, str, int, int]] = []
        """Places that were taken in this transaction and are not written yet."""
        self._next_ticket = 0
        self._tickets_left = 0

    def before(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int | None
    ) -> Operation[tuple[bool, bool]]:
        """Tell whether a ticket of our owner, and whether a stored one, comes before *ticket*."""
        before_own = before = False
        if not self.blocked and not self.heads:
            return before_own, before
        for window, want in zip(windows, wants, strict=True):
            if not want.charge:
                continue
            if window.id in self.blocked:
                before_own = True
            elif head := (yield from self._head_before(window, ticket)):
                before = True
                before_own = before_own or head.owner == self.owner
        return before_own, before

    def wait(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int | None, left: int
    ) -> Operation[int]:
        """Return the ticket to wait with: the one that the request has, or a new one.

        *left* requests of this transaction are undecided, so as many tickets may be needed.
        """
        if ticket is None:
            ticket = yield from self._new_ticket(left)
            self.join(ticket, wants)
        for window, want in zip(windows, wants, strict=True):
            if want.charge:
                self.blocked.add(window.id)
        return ticket

    def join(self, ticket: int, wants: Sequence[Want]) -> None:
        """Take a place for *ticket* in the line of each bucket that *wants* would charge."""
        self.has_joined = True
        lines = sum(want.charge > 0 for want in wants)
        for want in wants:
            if want.charge:
                window = self.windows[want.key]
                self._places.append((window.id, ticket, self.owner, want.charge, lines))

    def rejoin(self, tickets: Iterable[tuple[int, Sequence[Want]]]) -> Operation[None]:
        """Put tickets that were removed back into their lines."""
        for ticket, wants in tickets:
            self.join(ticket, wants)
        if self._places:
            yield from self.write_places()
            yield from self._read_heads()

    def leave(
        self, windows: Sequence[Window], wants: Sequence[Want], ticket: int
    ) -> Operation[None]:
        """Take *ticket* out of its lines."""
        yield from self.write_places()
        yield from limits.leave(
            [
                (window.id, ticket)
                for window, want in zip(windows, wants, strict=True)
                if want.charge
            ]
        )
        yield from self._read_heads()

    def write_places(self) -> Operation[None]:
        """Write the places that were taken since the last write."""
        if self._places:
            yield from limits.join(self._places)
            self._places = []

    def tickets_before(self, window: Window, ticket: int | None) -> Operation[limits.Ahead]:
        """Sum up the tickets before *ticket* in the line of *window*, `AHEAD` at the most."""
        last = 2**62 if ticket is None else ticket
        return (yield from limits.those_ahead(window.id, last, AHEAD))

    def _head_before(self, window: Window, ticket: int | None) -> Operation[limits.Head | None]:
        """Return the first ticket of a line if it comes before *ticket*.

        Removes first tickets that no caller waits with any more.
        """
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
            yield from self._read_heads()
        return None

    def _has_expired(self, head: limits.Head) -> Operation[bool]:
        if head.until_us is None or head.until_us <= self.now or self.is_gone(head.owner):
            return True
        if head.until_us > self.now + LEASE_US:
            # The clock was set back. Without this the lease would last as much longer.
            yield from limits.renew_owner(head.owner, self.now + LEASE_US)
        return False

    def _read_heads(self) -> Operation[None]:
        ids = [window.id for window in self.windows.values()]
        _, self.heads = yield from limits.line_heads(ids)

    def _new_ticket(self, left: int) -> Operation[int]:
        if not self._tickets_left:
            self._next_ticket = yield from limits.take_tickets(left)
            self._tickets_left = left
        self._tickets_left -= 1
        self._next_ticket += 1
        return self._next_ticket - 1
