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
    """Which events a trigger matches; without *events* and *filter*, all of its provider.

    *events* are names, of which one must be the event's: `channel:<name>` for an emit, else its
    kind, or the part before the dot (`pull_request` for `pull_request.opened`). *filter* gives
    values by path: all must be equal. *path* is where a `webhook` or `a2a-push` is served, by
    default `/triggers/<id>`; *topic* is the topic that a `stream` follows. The others may stand
    here or beside *match*, and `FlowOptions` explains them.
    """

    events: Sequence[str]
    filter: Mapping[str, Any]
    path: str
    topic: str
    schedule: str
    timezone: str
    catchup_mode: Catchup


class WindowOptions(TypedDict):
    """At most *max* in any *period*; with *key*, for each value at that path."""

    max: int
    period: Duration
    key: NotRequired[str]


class DebounceOptions(TypedDict):
    """Only the newest event passes, after a *period* without another.

    With *key*, for each value at that path.
    """

    period: Duration
    key: NotRequired[str]


class BatchOptions(TypedDict):
    """Collect *size* events, or those that came until *timeout* after the first.

    With *key*, for each value at that path.
    """

    size: int
    timeout: Duration
    key: NotRequired[str]


class SingletonOptions(TypedDict, total=False):
    """One at a time; with *key*, for each value at that path."""

    key: str


class ConcurrencyOptions(TypedDict):
    """At most *max* at once; with *key*, for each value at that path."""

    max: int
    key: NotRequired[str]


class OrderOptions(TypedDict):
    """Which event gets a free slot first: by the position in *order* of its value at *key*.

    A value that is not in *order* comes last.
    """

    key: str
    order: Sequence[str]


class RetryOptions(TypedDict, total=False):
    """When a failed dispatch is tried again, and how long its *dedupe_key* is remembered.

    *max* counts all attempts, the first one too; 0 is the default, 7. The *backoff* `svix`, the
    default, waits 5 s, 5 min, 30 min, 2 h, 5 h, then 10 h each time; `immediate`, the default in a
    manifest, does not wait; `linear` waits *delay* each time, by default a second; `exponential`
    doubles it each time, up to 10 h. A value at the trigger's *dedupe_key* is remembered for
    *retention_days*, by default 7.
    """

    max: int
    backoff: Backoff
    delay: Duration
    retention_days: int


class FlowOptions(TypedDict, total=False):
    """The options of a trigger beside its id, kind, provider, match and handler.

    The first six are gates, which an event passes in this order; `batch` excludes the others.

    - *batch*: one dispatch for several events, which are in `event.batch`.
    - *debounce*: the newest event passes, and those before it are skipped.
    - *rate_limit*: what is over the limit is skipped.
    - *throttle*: what is over the limit waits.
    - *singleton*: while one event is dispatched, the others are skipped.
    - *concurrency*: the others wait for a slot; a number is its `max`.
    - *retry*: when a failed dispatch is tried again. For a job of a worker queue this counts only
      if it is given; the queue's own policy holds otherwise.
    - *dedupe_key*: a path; an event whose value there is known is dropped.
    - *priority*: `high`, `normal` or `low` for the jobs of a `worker://` handler; or, with
      *concurrency*, which event gets a free slot first.
    - *schedule*, for kind `cron`: five cron fields, or six with seconds in front.
    - *timezone* of the schedule, such as `Europe/Berlin`; by default `UTC`.
    - *catchup_mode*: of missed instants, `skip` (the default) dispatches those that are less than a
      minute late, `latest` the newest one, `all` each of them.
    """

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
    """The fields of an event that `trigger_fire` may set; `TriggerEvent` explains them."""

    kind: str
    occurred_at: str
    occurred_at_date: str
    dedupe_key: str | None
    trace_id: str | None
    tenant_id: str | None
    headers: dict[str, str]
    batch: tuple[TriggerEvent, ...] | None
    signature: SignatureState
