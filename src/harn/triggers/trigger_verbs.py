"""The public verbs of triggers: they use the current runtime."""

from __future__ import annotations

from typing import Any, Unpack

from harn.current import current_runtime
from harn.triggers.binding import Kind, TriggerBinding, check_binding
from harn.triggers.dispatch_state import DispatchHandle
from harn.triggers.emit_receipt import EmitReceipt
from harn.triggers.registry import Triggers
from harn.triggers.retry import BY_HAND
from harn.triggers.targets import Handler
from harn.triggers.trigger_options import EventFields, FlowOptions, MatchOptions, ProviderName


async def trigger_register(
    *,
    id: str,
    kind: Kind,
    provider: ProviderName,
    match: MatchOptions | None,
    handler: Handler,
    **flow: Unpack[FlowOptions],
) -> TriggerBinding:
    """Register a trigger: events that *match* go to *handler*, through the gates of *flow*.

    *kind* is `channel.emit`, `cron`, `webhook`, `a2a-push` or `stream`. *provider* is `channel`,
    `cron`, `a2a-push` or `stream` accordingly, and for a webhook how it is signed: `github`,
    `stripe`, `slack`, `standard` or `webhook`. *handler* is a callable that takes the event, a
    `SpawnToPool`, `"worker://queue"`, `"channel://name"` or `"a2a://host/path"`. *flow* are the
    other options: gates, `retry`, `dedupe_key`, `priority`, and a schedule. Registering an id
    again makes a new version; dispatches under way finish on the old one. Cancelling registers
    nothing.

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
