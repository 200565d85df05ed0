"""The options of `trigger_register` and `trigger_fire` as type checkers read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from harn.duration import Duration
from harn.triggers.cron import Catchup
from harn.triggers.event import SignatureState, TriggerEvent
from harn.triggers.retry import Backoff
from harn.workers import Priority

ProviderName = Literal[
    "channel",
    "cron",
    "github",
    "stripe",
    "slack",
    "standard",
    "webhook",
    "a2a-push",
    "stream",
]
"""What makes events; `binding.py` says which kinds each one makes."""


class MatchOptions(TypedDict, total=False):
    """Which events a trigger matches; the last five are for the kinds that need them."""

    events: Sequence[str]
    filter: Mapping[str, Any]
    path: str
    topic: str
    schedule: str
    timezone: str
    catchup_mode: Catchup


class WindowOptions(TypedDict):
    """At most *max* in any *period*, for each value at the path *key*."""

    max: int
    period: Duration
    key: NotRequired[str]


class DebounceOptions(TypedDict):
    """Only the newest event passes, after a *period* without another."""

    period: Duration
    key: NotRequired[str]


class BatchOptions(TypedDict):
    """Collect *size* events, or what has come *timeout* after the first."""

    size: int
    timeout: Duration
    key: NotRequired[str]


class SingletonOptions(TypedDict, total=False):
    """One at a time, for each value at the path *key*."""

    key: str


class ConcurrencyOptions(TypedDict):
    """At most *max* at once, for each value at the path *key*."""

    max: int
    key: NotRequired[str]


class OrderOptions(TypedDict):
    """Who gets a free slot first: by the position in *order* of the value at the path *key*."""

    key: str
    order: Sequence[str]


class RetryOptions(TypedDict, total=False):
    """When a failed dispatch is tried again, and how long a dead one is kept."""

    max: int
    backoff: Backoff
    delay: Duration
    retention_days: int


class FlowOptions(TypedDict, total=False):
    """The options of a trigger beside its id, kind, provider, match and handler."""

    batch: BatchOptions | None
    debounce: DebounceOptions | None
    rate_limit: WindowOptions | None
    throttle: WindowOptions | None
    singleton: SingletonOptions | bool | None
    concurrency: ConcurrencyOptions | int | None
    retry: RetryOptions | None
    dedupe_key: str | None
    priority: Priority | OrderOptions | None
    schedule: str | None
    timezone: str | None
    catchup_mode: Catchup | None


class EventFields(TypedDict, total=False):
    """The fields of an event that `trigger_fire` may set."""

    kind: str
    occurred_at: str
    occurred_at_date: str
    dedupe_key: str | None
    trace_id: str | None
    tenant_id: str | None
    headers: dict[str, str]
    batch: tuple[TriggerEvent, ...] | None
    signature: SignatureState
