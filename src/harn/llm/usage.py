"""What model calls have used: the records of the topic `llm.usage`, added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from harn import topics
from harn.current import current_runtime
from harn.duration import Duration, to_ms
from harn.errors import InvalidOption, did_you_mean
from harn.records import fields_of
from harn.runtime import Runtime
from harn.storage import Event

LATE_MS = 3_600_000
"""How long after its call a record may be written, if the store could not be reached."""

Group = Literal["tenant", "provider", "model", "queue", "pool", "session", "day"]
FIELD_OF: dict[str, str] = {
    "tenant": "tenant_id",
    "provider": "provider",
    "model": "model",
    "queue": "queue",
    "pool": "pool",
    "session": "agent_session_id",
    "day": "day",
}
"""What usage can be grouped by, and where a record has it."""
SUMMED = ("failed", "retried", "cached", "input_tokens", "output_tokens", "cached_tokens")
"""The fields of a record that are added up; True counts as 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageTotal:
    """What the calls of one group have used; *by* names what the group has in common.

    *cost_usd* is the sum of the known costs, None if none is known; *unpriced* counts the calls
    without a known price. *failed*, *retried* and *cached* count calls, too.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     return [total.calls for total in await harn.llm_usage(since="1d", by=("tenant",))]
    >>> harn.run(main)
    []
    """

    by: tuple[str, ...] = field(repr=False)
    tenant: str | None = None
    provider: str | None = None
    model: str | None = None
    queue: str | None = None
    pool: str | None = None
    session: str | None = None
    day: str | None = None
    calls: int = 0
    failed: int = 0
    retried: int = 0
    cached: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    unpriced: int = 0

    @property
    def group(self) -> dict[str, str | None]:
        """The values that the calls have in common."""
        return {name: getattr(self, name) for name in self.by}

    def as_dict(self) -> dict[str, Any]:
        """Return the group and the sums, JSON-ready."""
        sums = {name: value for name, value in fields_of(self).items() if name not in FIELD_OF}
        del sums["by"]
        return {**self.group, **sums}


async def llm_usage(
    *, since: datetime | Duration | None = None, by: Sequence[Group] = ("tenant",)
) -> list[UsageTotal]:
    """Add up what the model calls of all processes have used, grouped *by* one or more names.

    The names are tenant, provider, model, queue, pool, session and day (UTC). *since* is an aware
    datetime, or a duration until now; None means all records that the log has. Cancelling leaves
    nothing behind.

    >>> import harn
    >>> async def main() -> list[int]:
    ...     async with harn.llm_slot("acme", "big-2", input_tokens=900) as slot:
    ...         await slot.settle(input_tokens=870, output_tokens=120)
    ...     return [total.output_tokens for total in await llm_usage(by=["model"])]
    >>> harn.run(main)
    [120]
    """
    runtime = current_runtime()
    sums = UsageSums(check_names(by))
    first_ms = _first_ms(runtime, since)
    after = 0 if first_ms is None else await _offset_before(runtime, first_ms - LATE_MS)
    async for event in runtime.event_log.stream(topics.LLM_USAGE, after):
        if first_ms is None or event.occurred_at_ms >= first_ms:
            sums.add(event)
    return sums.totals()


def check_names(by: Sequence[str]) -> tuple[str, ...]:
    """Return *by* if it names what usage can be grouped by, each once."""
    accepted = f"names of {', '.join(FIELD_OF)}"
    if isinstance(by, str) or not isinstance(by, Sequence):
        raise InvalidOption("by", by, f"a list with {accepted}")
    for name in by:
        if name not in FIELD_OF:
            raise InvalidOption("by", name, f"{accepted}{did_you_mean(str(name), FIELD_OF)}")
    if len(set(by)) < len(by):
        raise InvalidOption("by", list(by), f"{accepted}, each once")
    return tuple(by)


class _Call(msgspec.Struct):
    """What is added up of the record of a call."""

    tenant_id: Any = None
    provider: Any = None
    model: Any = None
    queue: Any = None
    pool: Any = None
    agent_session_id: Any = None
    failed: bool = False
    retried: bool = False
    cached: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None


class UsageSums:
    """Adds up records, apart for each group of *by*."""

    def __init__(self, by: tuple[str, ...]) -> None:
        self._by = by
        self._sums: dict[tuple[str | None, ...], dict[str, Any]] = {}

    def add(self, event: Event) -> None:
        """Add the model call that *event* records; other records are left out."""
        if event.kind != topics.LLM_CALLED:
            return  # any program may emit to the topic
        try:
            call = msgspec.convert(event.payload, _Call)
        except msgspec.ValidationError:
            return
        values = tuple(_value(call, event.occurred_at_ms, name) for name in self._by)
        sums = self._sums.get(values)
        if sums is None:
            sums = self._sums[values] = dict.fromkeys(("calls", *SUMMED, "unpriced"), 0)
            sums["cost_usd"] = None
        sums["calls"] += 1
        for name in SUMMED:
            sums[name] += getattr(call, name)
        if call.cost_usd is None:
            sums["unpriced"] += 1
        else:
            sums["cost_usd"] = round((sums["cost_usd"] or 0.0) + call.cost_usd, 9)

    def totals(self) -> list[UsageTotal]:
        """Return the total of each group, in the order of the groups' values; None is first."""
        return [
            UsageTotal(by=self._by, **dict(zip(self._by, values, strict=True)), **sums)  # type: ignore[arg-type]
            for values, sums in sorted(self._sums.items(), key=lambda item: _order(item[0]))
        ]


def _order(values: tuple[str | None, ...]) -> list[tuple[bool, str]]:
    return [(value is not None, value or "") for value in values]


def _value(call: _Call, at_ms: int, name: str) -> str | None:
    if name == "day":
        return datetime.fromtimestamp(at_ms / 1000, UTC).date().isoformat()
    value = getattr(call, FIELD_OF[name])
    return None if value is None else str(value)


def _first_ms(runtime: Runtime, since: datetime | Duration | None) -> int | None:
    if since is None:
        return None
    if isinstance(since, datetime):
        if since.tzinfo is None:
            raise InvalidOption("since", since, "a datetime with a time zone, or a duration")
        return round(since.timestamp() * 1000)
    return runtime.clock.now_ms() - to_ms(since, "since")


async def _offset_before(runtime: Runtime, at_ms: int) -> int:
    """Return an offset with no record after *at_ms* before it, but for late ones.

    Records are nearly in the order of their times, so this halves the topic as often as needed.
    """

    async def is_early(offset: int) -> bool:
        found = await runtime.event_log.read(topics.LLM_USAGE, offset, 1)
        return bool(found) and found[0].occurred_at_ms < at_ms

    low, high = 0, 1
    while await is_early(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if await is_early(middle):
            low = middle
        else:
            high = middle
    return low
