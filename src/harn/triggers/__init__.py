"""Triggers: an event finds its handlers.

event.py           TriggerEvent, and dotted paths into it
matching.py        which bindings an event reaches, and in which order
binding.py         a trigger, checked, with its version
trigger_options.py its options as type checkers read them
registry.py        the triggers of a runtime: register, accept events, fire, emit, replay
targets.py         where an event goes: functions, SpawnToPool, worker://, channel://; a2a.py, a2a://
http_client.py     one HTTP request to a checked address
allowed_hosts.py   which addresses may be called
gate_rules.py      the options and decisions of the gates before a handler
gates.py           those decisions, carried out on the store
gate_queue.py      the dispatches of this process that wait at one gate
retry.py           when a failed dispatch is tried again
circuit.py         when a destination that keeps failing is not called
circuits.py        those decisions, carried out on the store
dispatch_state.py  one event on its way to one binding
dispatcher.py      a dispatch from its envelope to its outcome
attempts.py        the calls of its handler, and the waits between them
handler_failure.py what a handler raised, without secrets
outcomes.py        the records that a dispatch ends with
recovery.py        this process's lease, and the events of processes that died
replay_mapping.py  whether a replay has the same pool, key and priority as before
dead_letters.py    list, replay and discard what failed; replay any event
cron.py            schedules
sources.py         what makes events without a caller: schedules and topics
job_runner.py      runs the job of a worker queue that holds an event
signatures.py      whether a webhook's signature is valid
secrets.py         values and headers that are never shown

The functions below are the public verbs: they use the current runtime.
"""

from __future__ import annotations

from typing import Any, Unpack

from harn.current import current_runtime
from harn.triggers.a2a import A2aRights, A2aTarget
from harn.triggers.allowed_hosts import check_allowed, read_url
from harn.triggers.binding import (
    KINDS,
    PROVIDERS,
    Binding,
    Kind,
    TriggerBinding,
    check_binding,
    check_id,
    check_kind,
    check_priority,
    check_provider,
)
from harn.triggers.circuit import circuit_state
from harn.triggers.cron import check_catchup, check_expression, check_schedule, check_zone
from harn.triggers.dead_letters import DeadLetters, Letters
from harn.triggers.dispatch_state import Dispatch, DispatchHandle
from harn.triggers.event import TriggerEvent, check_tenant, event_from
from harn.triggers.job_runner import JobRunner
from harn.triggers.matching import check_match, is_wanted
from harn.triggers.registry import Accepted, EmitReceipt, NotFound, Triggers
from harn.triggers.replay_mapping import compare_mapping
from harn.triggers.retry import BY_HAND, FROM_MANIFEST
from harn.triggers.secrets import Secrets, is_credential
from harn.triggers.signatures import (
    SCHEMES,
    Genuine,
    Headers,
    Refused,
    Scheme,
    sign,
    signing_key,
    verify,
)
from harn.triggers.targets import Call, Handler, LocalTarget, SpawnToPool, Target, check_handler
from harn.triggers.trigger_options import EventFields, FlowOptions, MatchOptions, Provider

__all__ = [
    "FROM_MANIFEST",
    "KINDS",
    "PROVIDERS",
    "SCHEMES",
    "A2aRights",
    "A2aTarget",
    "Accepted",
    "Binding",
    "Call",
    "DeadLetters",
    "Dispatch",
    "DispatchHandle",
    "EmitReceipt",
    "FlowOptions",
    "Genuine",
    "Headers",
    "JobRunner",
    "Letters",
    "LocalTarget",
    "MatchOptions",
    "NotFound",
    "Refused",
    "Scheme",
    "Secrets",
    "SpawnToPool",
    "Target",
    "TriggerBinding",
    "TriggerEvent",
    "Triggers",
    "channel_emit",
    "check_allowed",
    "check_binding",
    "check_catchup",
    "check_expression",
    "check_handler",
    "check_id",
    "check_kind",
    "check_match",
    "check_priority",
    "check_provider",
    "check_schedule",
    "check_tenant",
    "check_zone",
    "circuit_state",
    "compare_mapping",
    "event_from",
    "is_credential",
    "is_wanted",
    "read_url",
    "sign",
    "signing_key",
    "trigger_fire",
    "trigger_list",
    "trigger_register",
    "trigger_unregister",
    "verify",
]


async def trigger_register(
    *,
    id: str,
    kind: Kind,
    provider: Provider,
    match: MatchOptions | None,
    handler: Handler,
    **flow: Unpack[FlowOptions],
) -> TriggerBinding:
    """Register a trigger: events that *match* go to *handler*, through the gates of *flow*.

    *kind* is `channel.emit`, `cron`, `webhook`, `a2a-push` or `stream`. *handler* is a callable
    that takes the event, a `SpawnToPool`, `"worker://queue"`, `"channel://name"` or
    `"a2a://host/path"`. *flow* may
    contain `concurrency`, `throttle`, `rate_limit`, `debounce`, `batch`, `singleton`, `priority`,
    `retry` and `dedupe_key`. Registering an id again makes a new version; dispatches under way
    finish on the old one. Cancelling registers nothing.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     seen: list[str] = []
    ...     await harn.trigger_register(
    ...         id="greeter", kind="channel.emit", provider="channel",
    ...         match={"events": ["channel:hello"]},
    ...         handler=lambda event: seen.append(event.get("provider_payload.payload")))
    ...     await harn.channel_emit("hello", "world")
    ...     return seen
    >>> harn.run(main)
    ['world']
    """
    binding = check_binding(
        id=id,
        kind=kind,
        provider=provider,
        match=match,
        handler=handler,
        options=flow,
        default_retry=BY_HAND,
    )
    return current_runtime().service(Triggers).register(binding)


def trigger_unregister(id: str) -> bool:
    """Remove the trigger *id*; false if there is none. Dispatches under way finish.

    >>> import harn
    >>> async def main() -> bool:
    ...     return harn.trigger_unregister("no such")
    >>> harn.run(main)
    False
    """
    return current_runtime().service(Triggers).unregister(id)


def trigger_list() -> list[TriggerBinding]:
    """Return every trigger of this runtime by id, including old versions that still drain.

    >>> import harn
    >>> async def main() -> int:
    ...     return len(harn.trigger_list())
    >>> harn.run(main)
    0
    """
    return current_runtime().service(Triggers).listed()


async def trigger_fire(
    id: str, payload: Any = None, **fields: Unpack[EventFields]
) -> DispatchHandle:
    """Fire the trigger *id* by hand and wait for the end of the dispatch, including its retries.

    The event has *payload* at `provider_payload["payload"]`; *fields* sets other fields of the
    event, such as `tenant_id`. Cancelling stops waiting; the dispatch still runs.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.trigger_register(
    ...         id="double", kind="channel.emit", provider="channel", match={},
    ...         handler=lambda event: 2 * event.get("provider_payload.payload"))
    ...     handle = await harn.trigger_fire("double", 21)
    ...     return f"{handle.status}: {handle.result}"
    >>> harn.run(main)
    'dispatched: 42'
    """
    return await current_runtime().service(Triggers).fire(id, payload, **fields)


async def channel_emit(name: str, payload: Any, *, id: str | None = None) -> EmitReceipt:
    """Emit *payload* on the channel *name*: every trigger that matches `channel:<name>` gets it.

    The event is durable on return. Handlers have ended by then, unless they wait at a gate, for
    a retry, or take longer than a second; their handles then say `waiting` and can be awaited
    with `wait()`. A second emit with the same *id* within a week dispatches nothing. Cancelling
    before the event is written means that nothing happened; afterwards its dispatches run.

    >>> import harn
    >>> async def main() -> list[bool]:
    ...     return [(await harn.channel_emit("news", n, id="once")).duplicate for n in range(2)]
    >>> harn.run(main)
    [False, True]
    """
    return await current_runtime().service(Triggers).emit(name, payload, id=id)
