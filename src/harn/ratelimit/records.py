"""The work of one transaction of the limiter, and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from harn.ratelimit.window import Window


class Want(msgspec.Struct, frozen=True, gc=False):
    """What a request wants of one bucket; with a *charge* of 0 it only waits for pauses to end.

    The rule of a want that *replaces* is the only one of its key: earlier ones end at once.
    """

    key: str
    limit: int
    span: int
    charge: int
    replaces: bool = False


class Asking(NamedTuple):
    """One request: what it wants, its ticket if it has one, and whether it waits without room."""

    wants: tuple[Want, ...]
    ticket: int | None
    stays: bool


class Correction(NamedTuple):
    """Count *units* for the row *seq*, which was charged at *at*; without a row, charge them now.

    *at* is negative if nothing was charged at first, or if its time is not known.
    """

    want: Want
    bucket: int
    seq: int | None
    at: int
    units: int


class Pause(NamedTuple):
    """Grant nothing of *keys* for so many *microseconds*."""

    keys: tuple[str, ...]
    microseconds: int


class Ticket(NamedTuple):
    """A place in the line of every bucket that *wants* would charge."""

    number: int
    wants: tuple[Want, ...]


class Remembered(NamedTuple):
    """Buckets without tickets in their lines, as an operation left them in the store.

    They need not be read again while the store has this *version*, because then no other
    connection has written. Another operation of our own does not change the version: after it they
    must be forgotten.
    """

    version: int | None
    windows: dict[str, Window]


class LimiterWork(NamedTuple):
    """Everything that one operation is to carry out; requests with tickets come first."""

    owner: str
    asking: Sequence[Asking] = ()
    corrections: Sequence[Correction] = ()
    pauses: Sequence[Pause] = ()
    leaving: Sequence[Ticket] = ()
    rejoining: Sequence[Ticket] = ()
    renews: bool = False
    known: frozenset[int] | None = None
    """Tickets of *owner* that callers wait with, if the store may hold others of *owner*."""
    standing: Sequence[Want] = ()
    """Rules of callers of this process that wait in these buckets' lines: still in force."""
    remembered: Remembered | None = None
    """Buckets from the last operation. This one changes them in place and returns them."""


class Granted(NamedTuple):
    """All wants were charged at *at*; *rows* has (bucket, row, units) for each that charges."""

    at: int
    rows: tuple[tuple[int, int, int] | None, ...]


class Waits(NamedTuple):
    """Nothing was charged: ask again in *wait* microseconds.

    *wait* is None while an earlier ticket of the same process is first in line. *behind* tells
    whether any other ticket is.
    """

    ticket: int
    wait: int | None
    behind: bool


class NoRoom(NamedTuple):
    """Nothing was charged and no ticket is left; there may be room in *wait* microseconds."""

    wait: int


Verdict = Granted | Waits | NoRoom


@dataclass(slots=True)
class Done:
    """What a `LimiterWork` led to: a verdict for each request, a row or None for a correction."""

    now: int
    verdicts: list[Verdict] = field(default_factory=list)
    corrected: list[tuple[int, int] | None] = field(default_factory=list)
    use: list[tuple[str, int, int]] = field(default_factory=list)
    """Key, units that count, and when all of them will have expired."""
    forgotten: bool = False
    """The lease of the owner had expired, so its tickets must join their lines again."""
    remembered: Remembered | None = None
