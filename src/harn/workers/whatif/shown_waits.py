"""How a wait is written."""

from __future__ import annotations

from harn.duration import roughly


def shown_wait(ms: int | None) -> str:
    """Write a wait with about three digits.

    >>> shown_wait(250), shown_wait(1250), shown_wait(65_000), shown_wait(None)
    ('250ms', '1.2s', '1m5s', '-')
    """
    if ms is None:
        return "-"
    return f"{ms / 1000:.1f}s" if 1000 <= ms < 60_000 else roughly(ms)
