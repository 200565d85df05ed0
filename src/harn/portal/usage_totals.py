"""What model calls have cost, added up once: each record of the log is read a single time.

The first viewer makes it read what the log has, in the background; until that is done the totals
say how far they are. After that only new records are read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.llm import UsageSums, UsageTotal

if TYPE_CHECKING:
    from harn.runtime import Runtime

WAIT = 0.05
"""Seconds that a viewer waits for new records; the rest of them is read in the background."""
COLUMNS = ("calls", "failed", "input_tokens", "output_tokens")


class UsageTotals:
    """The usage of all records so far, by day, tenant, model and queue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sums = UsageSums(("day", "tenant", "model", "queue"))
        self._after = 0
        self._reading: asyncio.Task[None] | None = None

    async def latest(self, days: int) -> dict[str, Any]:
        """Return the totals of the last *days* with calls, and which part of the records they have.

        Cancelling does not stop the reading, which serves the next viewer.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read())
            self._runtime.own(self._reading)
        await asyncio.wait((self._reading,), timeout=WAIT)
        if self._reading.done():
            self._reading.result()  # a store that cannot be read is this viewer's error
        head = await self._runtime.event_log.head(topics.LLM_USAGE)
        totals = self._sums.totals()
        newest = sorted({str(each.day) for each in totals})[-days:]
        found = [each for each in totals if each.day in newest]
        return {
            "part": self._after / head if head else 1.0,
            "days": summed(found, lambda each: each.day),
            "by": {
                "tenant": summed(found, lambda each: each.tenant),
                "model": summed(found, lambda each: each.model),
                "queue": summed(found, lambda each: each.queue),
            },
            "total": next(iter(summed(found, lambda each: "")), None),
        }

    async def _read(self) -> None:
        async for page in self._runtime.event_log.pages(topics.LLM_USAGE, self._after, None):
            for event in page:
                self._sums.add(event)
                self._after = event.id
            await asyncio.sleep(0)  # others may run between two pages


def summed(
    totals: Iterable[UsageTotal], group: Callable[[UsageTotal], str | None]
) -> list[dict[str, Any]]:
    """Add *totals* up by *group*, the names in order.

    >>> one = UsageTotal(by=("model",), model="m", calls=2, cost_usd=0.5)
    >>> [found] = summed([one, one], lambda total: total.model)
    >>> found["name"], found["calls"], found["cost_usd"]
    ('m', 4, 1.0)
    """
    found: dict[str, dict[str, Any]] = {}
    for total in totals:
        name = "-" if (key := group(total)) is None else key
        row = found.setdefault(
            name, {"name": name, **dict.fromkeys(COLUMNS, 0), "cost_usd": None, "unpriced": 0}
        )
        for column in (*COLUMNS, "unpriced"):
            row[column] += getattr(total, column)
        if total.cost_usd is not None:
            row["cost_usd"] = round((row["cost_usd"] or 0.0) + total.cost_usd, 6)
    return [found[name] for name in sorted(found)]
