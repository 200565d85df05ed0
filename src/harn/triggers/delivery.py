"""One delivery of an event to a trigger: its name, its call, and whether it is a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from harn.naming import joined
from harn.triggers.event import TriggerEvent

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.workers import Priority


class Call(msgspec.Struct, frozen=True):
    """One delivery of an event to a trigger; a repetition has the same `delivery`."""

    runtime: Runtime
    event: TriggerEvent
    binding_id: str
    binding_key: str
    binding_version: int
    priority: Priority
    attempt: int
    replay_of: str | None = None
    replay: int = 0
    """The number of this replay of *replay_of*, from 1; 0 if it is no replay."""

    @property
    def delivery(self) -> str:
        """The delivery's name: the same for every attempt, also after a crash; new for a replay."""
        return delivery_key(self.binding_id, self.replay_of or self.event.id, self.replay)


def delivery_key(trigger_id: str, event_id: str, replay: int = 0) -> str:
    """Return the name of an event's delivery to a trigger; a replay's ends in its number.

    Different parts give different keys.

    >>> delivery_key("t", "evt_1"), delivery_key("t", "evt_1", 2), delivery_key("t", "a:b#2")
    ('t:evt_1', 't:evt_1#2', 't:a%3Ab%232')
    """
    key = joined(trigger_id, event_id).replace("#", "%23")
    return f"{key}#{replay}" if replay else key


def replay_headers(call: Call) -> dict[str, Any]:
    """Return the headers that a job keeps of its replay; empty if it is no replay."""
    if not call.replay:
        return {}
    return {"replay_of_event_id": call.replay_of, "replay": call.replay}


def replay_in(headers: Mapping[str, Any]) -> tuple[str | None, int]:
    """Read what `replay_headers` wrote: the event that is replayed, and the replay's number."""
    of, number = headers.get("replay_of_event_id"), headers.get("replay")
    if isinstance(of, str) and type(number) is int and number > 0:
        return of, number
    return None, 0
