"""Which bindings an event reaches, and in which order. Pure.

A binding names the events it matches (`match.events`) and may restrict them with a filter, a
mapping of paths to required values. Filter paths start inside the payload (`repo`); a path that is
not found there starts at the event's root (`provider_payload.payload.repo`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from harn.errors import InvalidOption, did_you_mean
from harn.naming import check_name
from harn.triggers.event import MISSING, TriggerEvent, check_path, find

CHANNEL = "channel:"
"""The prefix of a selector for events of a channel."""

MATCH_KEYS = (
    "events",
    "filter",
    "path",
    "topic",
    "schedule",
    "timezone",
    "catchup_mode",
)
MOST_EVENTS = 100


class Match(msgspec.Struct, frozen=True):
    """Which events a binding matches; the last five fields are for the kinds that need them."""

    events: tuple[str, ...] = ()
    filter: Mapping[str, Any] = msgspec.field(default_factory=dict)
    path: str | None = None
    topic: str | None = None
    schedule: str | None = None
    timezone: str | None = None
    catchup_mode: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what was given, JSON-ready."""
        shown: dict[str, Any] = {"events": list(self.events), "filter": dict(self.filter)}
        for name in MATCH_KEYS[2:]:
            shown[name] = getattr(self, name)
        return {name: value for name, value in shown.items() if value}


class Routed(Protocol):
    """The fields of a binding that matching reads."""

    @property
    def id(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def provider(self) -> str: ...
    @property
    def match(self) -> Match: ...


R = TypeVar("R", bound=Routed)


def route(bindings: Iterable[R], event: TriggerEvent) -> list[R]:
    """Return the bindings that *event* reaches, ordered by id, then version."""
    reached = [binding for binding in bindings if is_wanted(binding, event)]
    return sorted(reached, key=lambda binding: (binding.id, binding.version))


def is_wanted(binding: Routed, event: TriggerEvent) -> bool:
    """Tell whether *binding* matches *event*."""
    if binding.provider != event.provider:
        return False
    match = binding.match
    return names(match, event) and (not match.filter or passes(match.filter, event))


def names(match: Match, event: TriggerEvent) -> bool:
    """Tell whether *match* names the kind of *event*, or names none and so matches all."""
    if not match.events:
        return True
    return any(selector in match.events for selector in selectors(event))


def selectors(event: TriggerEvent) -> tuple[str, ...]:
    """Return the names that select *event* in `match.events`.

    A channel event answers to `channel:<name>`; another one to its kind, and a dotted kind such as
    `pull_request.opened` to its first part too.
    """
    if event.kind == "channel.emit":
        return (f"{CHANNEL}{event.provider_payload.get('name', '')}", event.kind)
    first, dot, _ = event.kind.partition(".")
    return (event.kind, first) if dot else (event.kind,)


def passes(wanted: Mapping[str, Any], event: TriggerEvent) -> bool:
    """Tell whether every path of the filter *wanted* leads to the value it must have."""
    payload = event.provider_payload.get("payload")
    return all(_equal(_filtered(payload, event, path), value) for path, value in wanted.items())


def _filtered(payload: Any, event: TriggerEvent, path: str) -> Any:
    found = find(payload, path)
    return find(event, path) if found is MISSING else found


def _equal(found: Any, wanted: Any) -> bool:
    """Compare as JSON values: true is not 1, but 1 equals 1.0."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(wanted, Mapping):
        return (
            isinstance(found, Mapping)
            and found.keys() == wanted.keys()
            and all(_equal(found[key], wanted[key]) for key in wanted)
        )
    if isinstance(wanted, list | tuple):
        return (
            isinstance(found, list | tuple)
            and len(found) == len(wanted)
            and all(map(_equal, found, wanted))
        )
    return bool(found == wanted)


def check_channel(name: Any) -> str:
    """Return *name* if it may name a channel."""
    if not isinstance(name, str) or not 0 < len(name) <= 128 or not name.isprintable():
        raise InvalidOption("name", name, "1 to 128 printable characters")
    return check_name("name", name)


def check_match(match: Any, option: str = "match") -> Match:
    """Read *match* as the user gave it; raise `InvalidOption` that names the wrong key."""
    if isinstance(match, Match):
        return match
    if match is None:
        return Match()
    if not isinstance(match, Mapping):
        raise InvalidOption(option, match, 'a mapping such as {"events": ["channel:orders"]}')
    for key in match:
        if key not in MATCH_KEYS:
            near = did_you_mean(key, MATCH_KEYS)
            raise InvalidOption(f"{option}.{key}", match[key], f"no such key{near}")
    return Match(
        events=_events(match.get("events", ()), f"{option}.events"),
        filter=_filter(match.get("filter", {}), f"{option}.filter"),
        **{key: _text(match.get(key), f"{option}.{key}") for key in MATCH_KEYS[2:]},
    )


def _events(events: Any, option: str) -> tuple[str, ...]:
    accepted = f'a list of up to {MOST_EVENTS} names such as ["channel:orders"]'
    if isinstance(events, str) or not isinstance(events, list | tuple) or len(events) > MOST_EVENTS:
        raise InvalidOption(option, events, accepted)
    for name in events:
        if not isinstance(name, str) or not name.strip() or len(name) > 300 or name == CHANNEL:
            raise InvalidOption(option, name, accepted)
    return tuple(events)


def _filter(wanted: Any, option: str) -> Mapping[str, Any]:
    if not isinstance(wanted, Mapping):
        raise InvalidOption(option, wanted, 'a mapping of paths to values such as {"repo": "harn"}')
    for path in wanted:
        check_path(option, path)
    return dict(wanted)


def _text(value: Any, option: str) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidOption(option, value, "a non-empty string")
    return value
