"""Every topic of the event log and every record kind we write, on one page.

`TOPICS` is what the reference page lists and what a test compares it with; the functions below
build the names that contain a queue or another user's word.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic (or, with `<...>` in its name, a family of them) and the kinds found there."""

    name: str
    kinds: tuple[str, ...]
    meaning: str


POOL_AUDIT = "lifecycle.pool.audit"

TOPICS = (
    Topic(
        POOL_AUDIT,
        ("pool_submit", "pool_dequeue", "pool_drop"),
        "One receipt per submit, start and drop of a pool task.",
    ),
)
