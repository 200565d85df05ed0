"""A key's share of a queue: its jobs, its turn and its credit; and the rule that moves them on.

The class below is what a claim does to a share; the schedulers and the fold of the log use it. What
else changes a share (new jobs, claims that end, corrections) is done by SQL statements, with the
fragments of `sql/jobs.sql`; what-if does that to its rows in memory, in `queue_tables.py`.
"""

from __future__ import annotations

import msgspec


class Share(msgspec.Struct, gc=False):
    """One key's part of a queue: its work, and its place in the rotation.

    *turn* is the round in which the key can be served next, None while it has nothing ready or is
    at its cap. *credit* counts in *round*; each later round has added *refill* to it, up to one
    refill. Where a pick costs one credit, *refill* is 0: a later round makes the credit full, and
    there are no debts. Where it costs what its job does, both are in millionths.
    """

    key: str
    ready: int
    in_flight: int
    turn: int | None
    round: int
    credit: int
    refill: int
    oldest_at: int | None
    knows_oldest: bool = False
    """Whether *oldest_at* was computed again after the share was served."""

    def credit_in(self, round: int, full: int) -> int:
        """Return the credit left in *round* of a key that each round grants *full*."""
        if self.refill:
            return self.accrued(round)
        return self.credit if self.round == round else full

    def accrued(self, round: int) -> int:
        """Return the credit in *round* of a key that is refilled by a fixed amount.

        The fragment `accrued` of the SQL says the same.
        """
        rounds = round - self.round
        if rounds <= 0 or self.credit >= self.refill:
            return self.credit
        return min(self.refill, self.credit + rounds * self.refill)

    def serve(self, round: int, credit: int, cap: int, refill: int = 0) -> None:
        """Move one job from ready to in flight, in *round*, which leaves *credit* in it.

        The scheduler and the fold of its records share this rule for a key's turn and credit. A
        key without work forgets its credit, not its debt; one at its *cap* keeps both until it has
        room again. A key in debt has its turn in the round in which refills have paid it.
        """
        self.round, self.credit, self.refill = round, credit, refill
        self.ready -= 1
        self.in_flight += 1
        if self.ready <= 0:
            self.turn, self.credit = None, min(0, credit)
        elif cap and self.in_flight >= cap:
            self.turn = None
        elif credit >= 0:
            self.turn = round if credit else round + 1
        else:
            self.turn = round + 1 + -credit // refill
