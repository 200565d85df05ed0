"""Operations on leases: names that one holder at a time has.

A lease expires at a time by the store's clock, unless it is renewed before. Every taking raises
its *epoch*, the fencing token: a renewal or release that names an older one changes nothing.
Leases are short-lived by nature and have no log. An engine of plain files has no tables that
processes share; see `lease_place` for where it keeps them.
"""

from __future__ import annotations

import msgspec

from harn.storage.operations import Operation, ask
from harn.storage.url import read_url


class TakenLease(msgspec.Struct, frozen=True):
    """A lease that is ours: *epoch* names this taking of it, forever."""

    epoch: int
    expires_at_ms: int


class LeaseHeld(msgspec.Struct, frozen=True):
    """A lease that another holder has, for *left_ms* more unless it is renewed."""

    holder: str
    left_ms: int


def take_lease(name: str, holder: str, ttl_ms: int) -> Operation[TakenLease | None]:
    """Take the lease *name* for *ttl_ms* if it is free; None if it is held."""
    rows = yield ask("take_lease", lease=name, holder=holder, ttl=ttl_ms)
    return TakenLease(*rows[0]) if rows else None


def look_at_lease(name: str) -> Operation[LeaseHeld | None]:
    """Tell who has the lease *name*; None when it could be taken."""
    rows = yield ask("read_lease", lease=name)
    if not rows:
        return None
    [(holder, expires_at_ms, now)] = rows
    left_ms = expires_at_ms - now
    return LeaseHeld(holder, left_ms) if left_ms > 0 else None


class LeaseView(msgspec.Struct, frozen=True):
    """A lease that is held, as an operator sees it."""

    name: str
    holder: str
    epoch: int
    left_ms: int


def list_leases(limit: int) -> Operation[list[LeaseView]]:
    """Return the leases that are held, by name, at most *limit*."""
    return [LeaseView(*row) for row in (yield ask("list_leases", limit=limit))]


def renew_lease(name: str, epoch: int, ttl_ms: int) -> Operation[bool]:
    """Keep the lease for *ttl_ms* from now; false if it was taken over since *epoch*."""
    return bool((yield ask("renew_lease", lease=name, epoch=epoch, ttl=ttl_ms)))


def release_lease(name: str, epoch: int) -> Operation[bool]:
    """Release the lease at once; false if it was not ours any more."""
    return bool((yield ask("release_lease", lease=name, epoch=epoch)))


def lease_place(url: str) -> str:
    """Return the URL of the store that keeps the leases of the store at *url*.

    >>> lease_place("sqlite:///state/events.sqlite")
    'sqlite:///state/events.sqlite'
    >>> lease_place("file:////var/lib/harn")
    'sqlite:////var/lib/harn/leases.sqlite'
    """
    place = read_url(url)
    return f"sqlite:///{place.path}/leases.sqlite" if place.engine == "file" else url
