"""What jobs cost their keys, as the queue index counts it: whole millionths, so sums are exact."""

from __future__ import annotations

import msgspec

from harn.option_checks import LARGEST

MILLION = 1_000_000
LARGEST_AMOUNT = LARGEST - 1
"""The largest charge, about 9,000 million: a job that costs more is charged this."""


def millionths(amount: float) -> int:
    """Return *amount*, which is not negative, in millionths; at most `LARGEST_AMOUNT`.

    >>> millionths(2), millionths(0.25), millionths(1e300) == LARGEST_AMOUNT
    (2000000, 250000, True)
    """
    return LARGEST_AMOUNT if amount * MILLION >= LARGEST_AMOUNT else round(amount * MILLION)


def stored_cost(cost: float) -> int | None:
    """Return *cost* as a job's row has it: in millionths; None is the default, 1."""
    return None if cost == 1 else millionths(cost)


class _Costed(msgspec.Struct):
    cost: float = 1


_decoder = msgspec.json.Decoder(_Costed)


def cost_in(record: str) -> int | None:
    """Return the cost in a job's record, which is JSON, as its row has it.

    >>> cost_in('{"queue": "q", "cost": 2.5}'), cost_in('{"queue": "q"}')
    (2500000, None)
    """
    return stored_cost(_decoder.decode(record).cost)
