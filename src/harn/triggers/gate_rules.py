"""Gates before a handler: their options, and their decisions. Pure.

They apply in this order: batch, debounce, rate_limit, throttle, singleton, concurrency. A batch
excludes the others; the others combine. Each gate may have a key, a path into the event: then each
value at that path has its own gate. `gates.py` applies the decisions in the store, so that they
hold for all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from harn.duration import to_ms, to_text
from harn.errors import InvalidOption, did_you_mean
from harn.option_checks import is_whole, whole_number
from harn.records import fields_of
from harn.triggers.event import TriggerEvent, as_gate_key, check_path, find

SkipReason = Literal["batch_merged", "debounced", "rate_limited", "singleton_active"]
LARGEST_COUNT = 1_000_000


class GateWindow(msgspec.Struct, frozen=True):
    """At most *max* in any *period_ms*: `rate_limit` skips the others, `throttle` delays them."""

    max: int
    period_ms: int
    key: str | None = None


class Debounce(msgspec.Struct, frozen=True):
    """Only the newest event passes, when *period_ms* have passed without another event."""

    period_ms: int
    key: str | None = None


class Batch(msgspec.Struct, frozen=True):
    """Events are collected until there are *size*, or until *timeout_ms* after the first."""

    size: int
    timeout_ms: int
    key: str | None = None


class Singleton(msgspec.Struct, frozen=True):
    """While one event is dispatched, the others are skipped."""

    key: str | None = None


class Concurrency(msgspec.Struct, frozen=True):
    """At most *max* run at once; the others wait for a slot."""

    max: int
    key: str | None = None


class Order(msgspec.Struct, frozen=True):
    """The order of waiters for a slot: by the position in *order* of the value at *key*.

    A value that is not in *order* comes last.
    """

    key: str
    order: tuple[str, ...]

    def rank(self, event: TriggerEvent) -> int:
        """Return the position of *event*'s value, 0 for the first."""
        value = as_gate_key(find(event, self.key))
        return self.order.index(value) if value in self.order else len(self.order)


class Flow(msgspec.Struct, frozen=True):
    """Every gate of a binding; None where it has none."""

    batch: Batch | None = None
    debounce: Debounce | None = None
    rate_limit: GateWindow | None = None
    throttle: GateWindow | None = None
    singleton: Singleton | None = None
    concurrency: Concurrency | None = None
    order: Order | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the gates that are set, JSON-ready."""
        gates = fields_of(self)
        return {name: _shown(gate) for name, gate in gates.items() if gate is not None}


NO_FLOW = Flow()
GATES = ("batch", "debounce", "rate_limit", "throttle", "singleton", "concurrency")


# -- decisions -----------------------------------------------------------------------------------


class Wait(msgspec.Struct, frozen=True):
    """Not yet: ask again at *until_ms*."""

    until_ms: int


def within_window(window: GateWindow, admitted: Sequence[int], now_ms: int) -> Wait | None:
    """Decide whether one more fits beside *admitted*, times in ascending order; None means yes.

    An entry leaves the window when its age reaches the period.

    >>> within_window(GateWindow(max=1, period_ms=1000), [500], 1499)
    Wait(until_ms=1500)
    """
    live = [at for at in admitted if at > now_ms - window.period_ms]
    if len(live) < window.max:
        return None
    return Wait(live[-window.max] + window.period_ms)


class GatePlace(msgspec.Struct, frozen=True, order=True):
    """A place in the queue for a slot: lower rank first, then the order of arrival."""

    rank: int
    ticket: int


def has_turn(mine: GatePlace, waiting: Sequence[GatePlace], held: int, most: int) -> bool:
    """Decide whether *mine* gets a slot now: one is free, and no waiter is ahead."""
    return held < most and all(mine <= other for other in waiting)


def batch_is_full(batch: Batch, members: int, opened_ms: int, now_ms: int) -> bool:
    """Decide whether a batch fires now."""
    return members >= batch.size or now_ms >= opened_ms + batch.timeout_ms


def gate_key(binding_id: str, gate: str, key: str | None, event: TriggerEvent) -> str:
    """Return the name of *event*'s gate: the binding's one, or the one for the key's value.

    The same value in another tenant has another gate.
    """
    if key is None:
        return f"{gate}\x1f{binding_id}"
    value = as_gate_key(find(event, key))
    return "\x1f".join((gate, binding_id, event.tenant_id or "", value))


# -- reading options -----------------------------------------------------------------------------


def check_flow(options: Mapping[str, Any], order: Any = None) -> Flow:
    """Read the gates of a binding; an error names the wrong option."""
    read: dict[str, Callable[[Any, str], Any]] = {
        "batch": _batch,
        "debounce": _debounce,
        "rate_limit": _window,
        "throttle": _window,
        "singleton": _singleton,
        "concurrency": _concurrency,
    }
    for name in options:
        if name not in read:
            raise InvalidOption(name, options[name], f"a gate{did_you_mean(name, read)}")
    found: dict[str, Any] = {
        name: read[name](value, name)
        for name, value in options.items()
        if value is not None and value is not False
    }
    if "batch" in found and len(found) > 1:
        others = ", ".join(sorted(set(found) - {"batch"}))
        raise InvalidOption("batch", options["batch"], f"no other gate beside batch ({others})")
    if order is not None:
        if "concurrency" not in found:
            raise InvalidOption("priority", order, "an order only with concurrency")
        found["order"] = _order(order, "priority")
    return Flow(**found)


def _window(value: Any, option: str) -> GateWindow:
    table = _table(value, option, ("max", "period", "key"), ("max", "period"))
    return GateWindow(
        _count(table["max"], f"{option}.max"),
        _period(table["period"], f"{option}.period"),
        check_path(f"{option}.key", table.get("key")),
    )


def _debounce(value: Any, option: str) -> Debounce:
    table = _table(value, option, ("period", "key"), ("period",))
    return Debounce(
        _period(table["period"], f"{option}.period"), check_path(f"{option}.key", table.get("key"))
    )


def _batch(value: Any, option: str) -> Batch:
    table = _table(value, option, ("size", "timeout", "key"), ("size", "timeout"))
    return Batch(
        _count(table["size"], f"{option}.size", 10_000),
        _period(table["timeout"], f"{option}.timeout"),
        check_path(f"{option}.key", table.get("key")),
    )


def _singleton(value: Any, option: str) -> Singleton:
    if value is True:
        return Singleton()
    table = _table(value, option, ("key",), ())
    return Singleton(check_path(f"{option}.key", table.get("key")))


def _concurrency(value: Any, option: str) -> Concurrency:
    if is_whole(value):
        value = {"max": value}
    table = _table(value, option, ("max", "key"), ("max",))
    return Concurrency(
        _count(table["max"], f"{option}.max"), check_path(f"{option}.key", table.get("key"))
    )


def _order(value: Any, option: str) -> Order:
    table = _table(value, option, ("key", "order"), ("key", "order"))
    order = table["order"]
    if not isinstance(order, list | tuple) or not order or len(order) > 100:
        raise InvalidOption(f"{option}.order", order, 'a list such as ["urgent", "normal"]')
    return Order(check_path(f"{option}.key", table["key"]) or "", tuple(map(as_gate_key, order)))


def _table(
    value: Any, option: str, known: Sequence[str], needed: Sequence[str]
) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidOption(option, value, f"a mapping with {', '.join(known)}")
    for key in value:
        if key not in known:
            near = did_you_mean(key, known)
            raise InvalidOption(f"{option}.{key}", value[key], f"no such key{near}")
    for key in needed:
        if key not in value:
            raise InvalidOption(option, dict(value), f"a mapping with {key!r}")
    return value


def _count(value: Any, option: str, most: int = LARGEST_COUNT) -> int:
    return whole_number(option, value, least=1, most=most)


def _period(value: Any, option: str) -> int:
    ms = to_ms(value, option)
    if ms < 1:
        raise InvalidOption(option, value, "a duration greater than zero")
    return ms


def _shown(gate: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in fields_of(gate).items():
        if name.endswith("_ms"):
            shown[name.removesuffix("_ms")] = to_text(value / 1000)
        elif value is not None:
            shown[name] = list(value) if isinstance(value, tuple) else value
    return shown
