"""What one transaction of the limiter is asked to do, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from harn.ratelimit.window import Window


class Want(msgspec.Struct, frozen=True, gc=False):
    """What a request wants of one bucket. A *charge* of 0 only waits for a pause to end."""

    key: str
    limit: int
    span: int
    charge: int


class Asking(NamedTuple):
    """One request: what it wants, its ticket if it has one, and whether it will keep waiting."""

    wants: tuple[Want, ...]
    ticket: int | None
    stays: bool


class Correction(NamedTuple):
    """Count *units* for a row that was charged at *at*; without a row, charge them now.

    Where nothing was charged at first, *at* is negative.
    """

    want: Want
    bucket: int
    seq: int | None
    at: int
    units: int


class Pause(NamedTuple):
    """Admit nothing to *keys* for so many *microseconds*."""

    keys: tuple[str, ...]
    microseconds: int


class Ticket(NamedTuple):
    """A place in the line of every bucket that *wants* would charge."""

    number: int
    wants: tuple[Want, ...]


class Remembered(NamedTuple):
    """Buckets in whose lines no ticket stands, as an operation left them in the store.

    They need not be read again while the store has this *version*: no other connection has
    written. After another operation of our own that writes to them, they must be forgotten.
    """

    version: int | None
    windows: dict[str, Window]


class Work(NamedTuple):
    """Everything that one operation is to carry out; requests with tickets come first."""

    owner: str
    asking: Sequence[Asking] = ()
    corrections: Sequence[Correction] = ()
    pauses: Sequence[Pause] = ()
    leaving: Sequence[Ticket] = ()
    rejoining: Sequence[Ticket] = ()
    renews: bool = False
    known: frozenset[int] | None = None
    """Our own tickets, when the store may hold others of ours that no caller waits for."""
    standing: Sequence[Want] = ()
    """Rules of our own callers that wait in these buckets' lines: they are still named."""
    remembered: Remembered | None = None
    """What the last operation left. This one changes it, and it is true again once `Done`."""


class Granted(NamedTuple):
    """All wants were charged at *at*: (bucket, row, units) for each of them that charges."""

    at: int
    rows: tuple[tuple[int, int, int] | None, ...]


class Waits(NamedTuple):
    """Nothing was charged: ask again in *wait* microseconds.

    *wait* is None while an earlier ticket of the same process comes first. *behind* tells whether
    a ticket of another process does.
    """

    ticket: int
    wait: int | None
    behind: bool


class Refused(NamedTuple):
    """Nothing was charged and no ticket is left; there may be room in *wait* microseconds."""

    wait: int


Verdict = Granted | Waits | Refused


@dataclass(slots=True)
class Done:
    """What came of a `Work`: one verdict for each request, one row or None for each correction."""

    now: int
    verdicts: list[Verdict] = field(default_factory=list)
    corrected: list[tuple[int, int] | None] = field(default_factory=list)
    use: list[tuple[str, int, int]] = field(default_factory=list)
    """Key, units that count, and when all of them will have expired."""
    forgotten: bool = False
    """Our owner had been taken for dead, so its tickets must join the lines again."""
    remembered: Remembered | None = None
