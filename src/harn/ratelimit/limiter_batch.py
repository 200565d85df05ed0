"""What callers ask of a store's limiter, and how a batch of it becomes one operation's work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from harn.batcher import Entry
from harn.ratelimit.records import Asking, Correction, LimiterWork, Pause, Ticket
from harn.ratelimit.waiting_callers import Caller, WaitingCallers
from harn.ratelimit.wake_times import EPSILON


class Corrections(NamedTuple):
    """Corrections that are carried out together."""

    corrections: Sequence[Correction]


class Barrier(NamedTuple):
    """Asks for nothing; its answer comes once everything asked for before has been tried."""


Item = Caller | Corrections | Pause | Ticket | Barrier
"""What a batch is made of; a ticket in it leaves its lines."""


def weight(item: Item) -> tuple[int, int]:
    """Count callers only: a full batch never delays a correction, a pause or a ticket."""
    return (1 if type(item) is Caller else 0), 0


def work_of(
    batch: Sequence[Entry[Item]],
    owner: str,
    callers: WaitingCallers,
    known: frozenset[int] | None,
    now: float,
    *,
    renews: bool,
    rejoins: bool,
) -> LimiterWork:
    """Return the work of *batch* for *owner*, whose *callers* wait with the tickets *known*.

    The work also renews the lease of *owner* or puts all tickets back in line, if it is told to.
    """
    items: defaultdict[type, list[Any]] = defaultdict(list)
    for entry in batch:
        items[type(entry.item)].append(entry.item)
    asking: list[Caller] = items[Caller]
    keys = {want.key for caller in asking for want in caller.wants} if callers else ()
    return LimiterWork(
        owner,
        [_asking(caller, now) for caller in asking],
        [each for together in items[Corrections] for each in together.corrections],
        items[Pause],
        items[Ticket],
        callers.tickets if rejoins else (),
        renews,
        known,
        callers.rules_of(keys),
    )


def _asking(caller: Caller, now: float) -> Asking:
    stays = caller.stays and (caller.deadline is None or now + EPSILON < caller.deadline)
    return Asking(caller.wants, caller.ticket, stays)
