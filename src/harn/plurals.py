"""A number with its noun, in the singular or the plural."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return *number* and *noun*, whose plural has an `s` unless *plural* is given.

    >>> counted(1, "job"), counted(0, "dead letter"), counted(2000, "process", "processes")
    ('1 job', '0 dead letters', '2,000 processes')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
