"""The consumers of a simulation: those of the log, or as many as are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

FOREVER = 2**62


class RecordedConsumer(msgspec.Struct, array_like=True):
    """When a consumer worked, and how many jobs it held at once."""

    start: int
    end: int
    slots: int = 0
    held: int = 0
    left_work: bool = False
    """Whether jobs were ready when its last one ended: then it was stopped."""


class SimulatedConsumer(msgspec.Struct, eq=False):
    """A consumer with *slots*, from *start* on; it leaves at *end* or when it finds nothing."""

    start: int
    end: int
    slots: int
    leaves_at_once: bool = False
    held: int = 0
    is_there: bool = False
    is_leaving: bool = False

    @property
    def free(self) -> int:
        """How many more jobs it can take."""
        return self.slots - self.held if self.is_there else 0


def recorded_fleet(recorded: Sequence[RecordedConsumer]) -> list[SimulatedConsumer]:
    """Return the consumers of the log.

    One that left work behind, while others worked on, was stopped: it leaves at the same time.
    Another one leaves when it finds nothing more, not before the time of the record.
    """
    last = max((each.end for each in recorded), default=0)
    return [
        SimulatedConsumer(
            each.start,
            FOREVER if each.held else each.end,
            max(1, each.slots),
            each.left_work and each.end < last,
        )
        for each in recorded
    ]


def fleet_of(consumers: int, recorded: Sequence[RecordedConsumer]) -> list[SimulatedConsumer]:
    """Return so many consumers, there from the first recorded claim on, each with as many slots
    as a recorded one had at most.
    """
    start = min((each.start for each in recorded), default=0)
    slots = max((each.slots for each in recorded), default=1)
    return [SimulatedConsumer(start, FOREVER, max(1, slots)) for _ in range(consumers)]
