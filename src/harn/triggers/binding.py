"""A trigger: the events it matches, its handler, its options and its version."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec

from harn.errors import InvalidOption, did_you_mean
from harn.records import Record
from harn.triggers.event import check_path
from harn.triggers.gate_rules import GATES, NO_FLOW, Flow, check_flow
from harn.triggers.matching import Match, check_match
from harn.triggers.retry import Retry, check_retry
from harn.triggers.targets import Target, check_handler

if TYPE_CHECKING:
    from harn.triggers.cron import Schedule
    from harn.workers import Priority

Kind = Literal["channel.emit", "cron", "webhook", "a2a-push", "stream"]
State = Literal["active", "draining", "terminated"]

KINDS: tuple[Kind, ...] = get_args(Kind)
PROVIDERS: dict[Kind, tuple[str, ...]] = {
    "channel.emit": ("channel",),
    "cron": ("cron",),
    "webhook": ("github", "stripe", "slack", "standard", "webhook"),
    "a2a-push": ("a2a-push",),
    "stream": ("stream",),
}
OPTIONS = (*GATES, "retry", "dedupe_key", "priority", "schedule", "timezone", "catchup_mode")
"""The options beside id, kind, provider, match and handler."""
DEFAULT_EVENT = {
    "channel.emit": "channel.emit",
    "cron": "tick",
    "webhook": "webhook",
    "a2a-push": "a2a.task.received",
    "stream": "record",
}
MOST_ID = 128

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TriggerBinding(Record):
    """A registered trigger as it is shown: its id, version, state and target.

    >>> import harn
    >>> async def main() -> tuple[str, str]:
    ...     binding = await harn.trigger_register(
    ...         id="t", kind="channel.emit", provider="channel", match={}, handler="worker://triage")
    ...     return binding.key, binding.target_uri
    >>> harn.run(main)
    ('t@v1', 'worker://triage')
    """

    id: str
    key: str
    version: int
    kind: str
    provider: str
    state: State
    handler_kind: str
    target_uri: str


class Binding(msgspec.Struct, frozen=True, dict=True):
    """One version of a trigger, checked."""

    id: str
    kind: Kind
    provider: str
    match: Match
    target: Target
    retry: Retry
    flow: Flow = NO_FLOW
    dedupe_path: str | None = None
    priority: Priority = "normal"
    schedule: Schedule | None = None
    version: int = 1
    retry_given: bool = False
    """Whether the definition sets `retry`; then it also applies to jobs of a worker queue."""

    @cached_property
    def key(self) -> str:
        """The name of this version."""
        return f"{self.id}@v{self.version}"

    def is_same(self, other: Binding) -> bool:
        """Tell whether *other* equals this in every field except the version."""
        return self.at_version(other.version) == other and self._exactly() == other._exactly()

    def _exactly(self) -> bytes:
        # In Python `True == 1`; in a filter they differ, so compare the JSON text too.
        return msgspec.json.encode((self.match, self.flow), order="sorted")

    @property
    def is_local(self) -> bool:
        """Whether its handler runs in this process."""
        return self.target.kind not in ("worker", "a2a")

    @cached_property
    def destination(self) -> str:
        """The name of its target's circuit."""
        return f"{self.target.kind}:{self.target.uri}"

    def first_event(self) -> str:
        """Return the kind of the event that `trigger_fire` makes."""
        plain = [name for name in self.match.events if not name.startswith("channel:")]
        return plain[0] if plain else DEFAULT_EVENT[self.kind]

    def at_version(self, version: int) -> Binding:
        """Return this definition as version *version*."""
        return msgspec.structs.replace(self, version=version)

    def shown(self, state: State) -> TriggerBinding:
        """Return what `trigger_list` shows."""
        return TriggerBinding(
            self.id,
            self.key,
            self.version,
            self.kind,
            self.provider,
            state,
            self.target.kind,
            self.target.uri,
        )


def check_binding(
    *,
    id: Any,
    kind: Any,
    provider: Any,
    match: Any,
    handler: Any,
    options: Mapping[str, Any],
    default_retry: Retry,
) -> Binding:
    """Read the definition of a trigger; every mistake is an `InvalidOption` that names it."""
    checked_kind = check_kind(kind)
    for name in options:
        if name not in OPTIONS:
            raise InvalidOption(name, options[name], f"no such option{did_you_mean(name, OPTIONS)}")
    checked_match = check_match(match)
    priority = options.get("priority")
    order = priority if isinstance(priority, Mapping) else None
    gates = {name: options[name] for name in GATES if name in options}
    target = check_handler(handler)
    _check_no_loop(checked_match, target)
    return Binding(
        id=check_id(id),
        kind=checked_kind,
        provider=check_provider(checked_kind, provider),
        match=checked_match,
        target=target,
        retry=check_retry(options.get("retry"), default_retry),
        flow=check_flow(gates, order),
        dedupe_path=check_path("dedupe_key", options.get("dedupe_key")),
        priority="normal" if order else check_priority(priority),
        schedule=_schedule(checked_kind, checked_match, options),
        retry_given=options.get("retry") is not None,
    )


def _check_no_loop(match: Match, target: Target) -> None:
    """Refuse a trigger that emits on the channel that it matches: it would never end."""
    if target.kind == "channel" and f"channel:{target.uri.partition('://')[2]}" in match.events:
        raise InvalidOption("handler", target.uri, "another channel than the one it matches")


def check_id(id: Any) -> str:
    """Return *id* if it may name a trigger."""
    if not isinstance(id, str) or len(id) > MOST_ID or not _ID.fullmatch(id):
        raise InvalidOption(
            "id",
            id,
            f"1 to {MOST_ID} letters, digits, '.', '_', ':' or '-', a letter or digit first",
        )
    return id


def check_kind(kind: Any) -> Kind:
    """Return *kind* if there is one of that name."""
    for known in KINDS:
        if kind == known:
            return known
    near = did_you_mean(kind, KINDS) if isinstance(kind, str) else ""
    raise InvalidOption("kind", kind, f"one of {', '.join(KINDS)}{near}")


def check_provider(kind: Kind, provider: Any) -> str:
    """Return *provider* if it makes events of *kind*."""
    if isinstance(provider, str) and provider in PROVIDERS[kind]:
        return provider
    known = PROVIDERS[kind]
    near = did_you_mean(provider, known) if isinstance(provider, str) else ""
    raise InvalidOption("provider", provider, f"for {kind}, {' or '.join(known)}{near}")


def check_priority(priority: Any) -> Priority:
    """Return *priority* if a queue knows it; None is `normal`."""
    if priority is None:
        return "normal"
    from harn.workers import Priority  # a trigger without one needs nothing of the queues

    for known in get_args(Priority):
        if priority == known:
            return known  # type: ignore[no-any-return]
    raise InvalidOption(
        "priority", priority, '"high", "normal" or "low"; or a mapping with key and order'
    )


def _schedule(kind: Kind, match: Match, options: Mapping[str, Any]) -> Schedule | None:
    given = {
        name: getattr(match, name) if options.get(name) is None else options[name]
        for name in ("schedule", "timezone", "catchup_mode")
    }
    if kind != "cron":
        for name, value in given.items():
            if value is not None:
                raise InvalidOption(name, value, "only for kind 'cron'")
        return None
    if given["schedule"] is None:
        raise InvalidOption("match", match.as_dict(), 'a mapping with "schedule" for kind "cron"')
    from harn.triggers.cron import check_schedule

    return check_schedule(given["schedule"], given["timezone"], given["catchup_mode"])
