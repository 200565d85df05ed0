"""The targets of events: a function or pool of this process, a worker queue, a channel, an agent.

A target delivers one event once and returns a JSON-ready receipt. If it raises, the attempt has
failed; the dispatcher decides whether there is another one.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harn.errors import InvalidOption, TriggerError, did_you_mean
from harn.naming import check_name
from harn.tasks import check_callable, runner_for
from harn.topics import check_queue_name
from harn.triggers.delivery import Call, replay_headers
from harn.triggers.event import MISSING, TriggerEvent, as_key, as_priority, check_path, find
from harn.triggers.matching import check_channel

if TYPE_CHECKING:
    from harn.pools import PoolTask

logger: logging.Logger = logging.getLogger("harn.triggers")

URI_SCHEMES = ("worker", "channel", "a2a")
_PAYLOAD = "provider_payload.payload"
_RECEIPT = (
    *("id", "pool", "pool_id", "status", "priority", "key"),
    *("rejection_reason", "rejection_policy", "submitted_at"),
)


class Target(Protocol):
    """A destination of events. A trigger whose target changes gets a new version."""

    @property
    def kind(self) -> str: ...
    @property
    def uri(self) -> str: ...
    async def deliver(self, call: Call) -> Any:
        """Deliver one event; return its receipt. Cancelling may leave it delivered."""


class NotRetryable(TriggerError):
    """An attempt that failed, and would fail again: it is not retried."""


class LocalTarget:
    """A function of this process, called with the event."""

    kind = "local"

    def __init__(self, fn: Callable[[TriggerEvent], Any], uri: str | None = None) -> None:
        self.fn: Callable[[TriggerEvent], Any] = check_callable(fn)
        self.uri: str = uri or f"local://{_name_of(fn)}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalTarget) and (self.fn, self.uri) == (other.fn, other.uri)

    def __hash__(self) -> int:
        return hash(self.uri)

    async def deliver(self, call: Call) -> Any:
        """Call the function; a plain one runs on a worker thread, where no cancel reaches it."""
        return await runner_for(call.runtime, "auto").bind(self.fn)(call.event)


@dataclass(frozen=True)
class SpawnToPool:
    """A handler that submits one closure to a pool for each event.

    *task_factory* takes the event and returns the closure. It runs on the event loop, so the work
    belongs in the closure. *priority_from* and *key_from* are dotted paths into the event. If the
    pool does not exist, the event becomes a dead letter at once. If the pool is full, the attempt
    fails; a task that a drop policy rejects is a result.

    >>> import harn
    >>> from harn.pools import pool_create, pool_wait
    >>> async def main() -> str:
    ...     await pool_create(name="work")
    ...     await harn.trigger_register(
    ...         id="router", kind="channel.emit", provider="channel",
    ...         match={"events": ["channel:orders"]},
    ...         handler=SpawnToPool("work", lambda event: lambda: event.id[:11]))
    ...     receipt = await harn.channel_emit("orders", "one coffee")
    ...     done = await pool_wait(receipt.dispatched[0].result)
    ...     return done.result
    >>> harn.run(main)
    'trigger_evt'
    """

    pool: str
    task_factory: Callable[[TriggerEvent], Callable[[], Any]]
    priority_from: str | None = None
    key_from: str | None = None

    kind = "spawn_to_pool"

    def __post_init__(self) -> None:
        check_name("pool", self.pool)
        if not callable(self.task_factory):
            raise InvalidOption("task_factory", self.task_factory, "a function of the event")
        check_path("priority_from", self.priority_from)
        check_path("key_from", self.key_from)

    @property
    def uri(self) -> str:
        """The pool's URI."""
        return f"pool://{self.pool}"

    async def deliver(self, call: Call) -> Any:
        """Submit the closure for this event; the receipt is the pool's task."""
        from harn.pools import PoolRegistry

        pool = call.runtime.service(PoolRegistry).get(self.pool)
        if pool is None:
            raise NotRetryable(f"pool {self.pool!r} does not exist; create it before its triggers")
        # On the loop: a factory is usually one line, and a thread would cost more than it.
        closure = self.task_factory(call.event)
        if inspect.isawaitable(closure):
            closure = await closure
        if not callable(closure):
            raise TriggerError(
                f"task_factory returned {type(closure).__name__}; it must return a function"
            )
        task = await pool.submit(
            closure,
            priority=self._priority(call.event),
            key=None if self.key_from is None else as_key(find(call.event, self.key_from)),
            idempotency_key=call.delivery,
        )
        return receipt_of(task)

    def _priority(self, event: TriggerEvent) -> int:
        found = MISSING if self.priority_from is None else find(event, self.priority_from)
        if found is MISSING or found is None:
            return 0
        priority = as_priority(found)
        if priority is None:
            logger.warning(
                "event %s: %s is not a number; its priority is 0", event.id, self.priority_from
            )
        return priority or 0


def receipt_of(task: PoolTask) -> dict[str, Any]:
    """Return a pool task as a receipt, which `pool_wait` accepts."""
    seen = task.snapshot()
    found = {name: value for name in _RECEIPT if (value := getattr(seen, name)) is not None}
    return {"_type": "pool_task", **found}


class WorkerTarget:
    """A worker queue: the event becomes a job that a consumer claims later."""

    kind = "worker"

    def __init__(self, queue: str) -> None:
        self.queue: str = check_queue_name(queue)
        self.uri: str = f"worker://{queue}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkerTarget) and self.uri == other.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    async def deliver(self, call: Call) -> Any:
        """Enqueue the event; the receipt has the job's id."""
        from harn.workers import NewJob, worker_queue

        event = call.event
        wanted = event.headers.get("priority", "").lower()
        job = NewJob(
            event.as_dict(),
            trigger_id=call.binding_id,
            priority="high" if wanted == "high" else "low" if wanted == "low" else call.priority,
            tenant_id=event.tenant_id,
            binding_key=call.binding_key,
            headers={"event_id": event.id, **replay_headers(call)},
            dedupe_key=call.delivery,
            binding_version=call.binding_version,
            replay_of_event_id=call.replay_of,
        )
        [receipt] = await worker_queue(self.queue).enqueue_many([job])
        return receipt.as_dict()


class ChannelTarget:
    """A channel: the event's payload is emitted on it, with the event's id.

    An event that is delivered again after a crash has the same id, so it is emitted once. A batch
    is emitted as the list of its members' payloads.
    """

    kind = "channel"

    def __init__(self, channel: str) -> None:
        self.channel: str = check_channel(channel)
        self.uri: str = f"channel://{channel}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChannelTarget) and self.uri == other.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    async def deliver(self, call: Call) -> Any:
        """Emit the payload; the receipt has the id of the channel's event."""
        from harn.triggers.registry import Triggers

        event = call.event
        payload = event.get(_PAYLOAD)
        if event.batch is not None:
            payload = [member.get(_PAYLOAD) for member in event.batch]
        receipt = await call.runtime.service(Triggers).emit(self.channel, payload, id=event.id)
        return {
            "event_id": receipt.event_id,
            "name": receipt.name,
            "duplicate": receipt.duplicate,
            "reached": [handle.binding_id for handle in receipt.dispatched],
        }


Handler = str | SpawnToPool | Target | Callable[[TriggerEvent], Any]
"""Where a trigger's events go, as the user says it."""


def check_handler(handler: Any) -> Target:
    """Read a handler: a callable, a `SpawnToPool`, or the URI of a queue, channel or agent."""
    if isinstance(handler, str):
        return _from_uri(handler)
    if isinstance(handler, SpawnToPool):
        return handler
    if hasattr(handler, "deliver") and hasattr(handler, "uri"):
        return handler  # type: ignore[no-any-return]
    if not callable(handler):
        raise InvalidOption(
            "handler",
            handler,
            'a function, SpawnToPool(...), "worker://queue", "channel://name" or "a2a://host/path"',
        )
    return LocalTarget(handler)


def _from_uri(uri: str) -> Target:
    scheme, separator, rest = uri.partition("://")
    if separator and scheme == "worker":
        return WorkerTarget(rest)
    if separator and scheme == "channel":
        return ChannelTarget(rest)
    if separator and scheme in ("a2a", "a2a+http"):
        from harn.triggers.a2a import A2aTarget

        return A2aTarget(uri)
    near = did_you_mean(scheme, URI_SCHEMES) if separator else ""
    known = '"worker://queue", "channel://name" or "a2a://host/path"'
    accepted = f"{known}; give a function itself, not its name{near}"
    raise InvalidOption("handler", uri, accepted)


def _name_of(fn: Any) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    return f"{getattr(fn, '__module__', '')}:{name}"
