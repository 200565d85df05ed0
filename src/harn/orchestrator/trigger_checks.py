"""The parts of a `[[triggers]]` table, each checked separately: no mistake hides another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from harn.errors import InvalidOption, ManifestError, did_you_mean
from harn.orchestrator.body_formats import BODY_FORMATS
from harn.orchestrator.manifest_errors import Problems
from harn.orchestrator.manifest_exports import split_reference
from harn.triggers import (
    FROM_MANIFEST,
    GATES,
    SpawnToPool,
    check_binding,
    check_handler,
    check_id,
    check_kind,
    check_match,
    check_priority,
    check_provider,
    check_tenant,
)

POOL_KEYS = ("pool", "task_factory", "priority_from", "key_from")
SERVED = ("webhook", "a2a-push")
_SCHEDULE = ("schedule", "timezone", "catchup_mode")
_RIGHT = {"max": 1, "period": "1s", "size": 1, "timeout": "1s"}
"""Valid values that replace wrong ones of required keys, to find further mistakes."""


def check_parts(table: Mapping[str, Any], where: str, problems: Problems) -> None:
    """Check every part that *table* has."""
    checks: dict[str, Callable[[Any], Any]] = {
        "id": check_id,
        "kind": check_kind,
        "match": _check_match,
        "handler": check_reference,
        **{key: partial(_check_option, key) for key in (*GATES, "retry", "dedupe_key")},
        "tenant_id": check_tenant,
    }
    for key, check in checks.items():
        if key in table:
            _attempt_all(where, key, table[key], check, problems)
    if "filter" in table:
        wanted = {"filter": table["filter"]}
        problems.attempt(where, "filter", lambda: check_match(wanted, "filter"))
    if "priority" in table:
        problems.attempt(where, "priority", lambda: _check_priority(table))
    if (kind := _kind_of(table)) is not None:
        _check_for_kind(table, kind, where, problems)


def _attempt_all(
    where: str, key: str, value: Any, check: Callable[[Any], Any], problems: Problems
) -> None:
    """Check *value*; after a mistake in one of its keys, check again with that key corrected."""
    corrected: set[str] = set()
    while True:
        wrong = _wrong_key(check, value)
        if wrong in corrected or (wrong is None and corrected):
            return
        problems.attempt(where, key, partial(check, value))
        if wrong is None or not isinstance(value, dict) or wrong not in value:
            return
        corrected.add(wrong)
        value = {name: inner for name, inner in value.items() if name != wrong}
        if wrong in _RIGHT:
            value[wrong] = _RIGHT[wrong]


def _wrong_key(check: Callable[[Any], Any], value: Any) -> str | None:
    try:
        check(value)
    except InvalidOption as error:
        return error.option.split(".")[1] if "." in error.option else None
    except ManifestError:
        return None
    return None


def _check_match(match: Any) -> None:
    """Check *match* without the keys of a schedule, which may also be outside of it."""
    if isinstance(match, dict):
        match = {key: value for key, value in match.items() if key not in _SCHEDULE}
    check_match(match)


def _check_option(key: str, value: Any) -> None:
    check_binding(
        id="x",
        kind="channel.emit",
        provider="channel",
        match={},
        handler=print,
        options={key: value},
        default_retry=FROM_MANIFEST,
    )


def _check_priority(table: Mapping[str, Any]) -> None:
    if isinstance(table["priority"], dict):
        return  # an order belongs to the gate `concurrency`: `binding_of` checks both together
    check_priority(table["priority"])


def _kind_of(table: Mapping[str, Any]) -> Any:
    try:
        return check_kind(table.get("kind"))
    except InvalidOption:
        return None


def _check_for_kind(table: Mapping[str, Any], kind: Any, where: str, problems: Problems) -> None:
    """Check the keys that only some kinds of trigger have."""
    if "provider" in table:
        problems.attempt(where, "provider", lambda: check_provider(kind, table["provider"]))
    given = list(_placed(table, _SCHEDULE))
    for place, name, value in given:
        if kind == "cron":
            problems.attempt(where, place, partial(_check_schedule, name, value, place))
        else:
            problems.add(where, place, f"{value!r}: only for kind 'cron'")
    if kind == "cron" and not any(name == "schedule" for _, name, _ in given):
        problems.add(where, "schedule", 'is missing: a cron trigger needs schedule = "0 2 * * *"')
    if kind == "stream" and not any(_placed(table, ("topic",))):
        problems.add(where, "match", 'a stream needs match = { topic = "..." }')
    if "body" in table and kind != "webhook":
        problems.add(where, "body", "only for webhook")
    elif table.get("body", "json") not in BODY_FORMATS:
        problems.add(where, "body", f"one of {', '.join(BODY_FORMATS)}")
    for place, _, path in _placed(table, ("path",)):
        if kind not in SERVED:
            problems.add(where, place, f"only for {' and '.join(SERVED)}")
        elif not _is_path(path):
            problems.add(where, place, 'a path such as "/hooks/github"')


def _check_schedule(name: str, value: Any, place: str) -> None:
    from harn.triggers import check_catchup, check_expression, check_zone

    checks = {"schedule": check_expression, "timezone": check_zone, "catchup_mode": check_catchup}
    checks[name](value, place)


def _is_path(path: Any) -> bool:
    is_text = isinstance(path, str) and len(path) <= 200
    return is_text and path.startswith("/") and path.isprintable()


def _placed(table: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """Yield the place of each of *names*, in the table or inside `match`, and its value."""
    match = table.get("match")
    for name in names:
        if name in table:
            yield name, name, table[name]
        if isinstance(match, dict) and name in match:
            yield f"match.{name}", name, match[name]


def check_reference(handler: Any) -> None:
    """Check how a handler is written; nothing is imported."""
    if isinstance(handler, dict):
        for key in handler:
            if key not in POOL_KEYS:
                near = did_you_mean(key, POOL_KEYS)
                raise ManifestError(f"{key!r}: no such key of a pool's handler{near}")
        factory = handler.get("task_factory")
        if not isinstance(factory, str):
            raise ManifestError('a pool\'s handler needs task_factory = "export::function"')
        split_reference(factory)
        SpawnToPool(
            handler.get("pool", ""),
            no_factory,
            handler.get("priority_from"),
            handler.get("key_from"),
        )
    elif not isinstance(handler, str):
        raise ManifestError(
            '"export::function", "worker://queue", "channel://name", "a2a://host/path", or a pool'
        )
    elif "://" in handler:
        check_handler(handler)
    else:
        split_reference(handler)


def check_export(handler: Any, exports: Collection[str]) -> None:
    """Check that a handler's export is one of *exports*."""
    name = handler.get("task_factory") if isinstance(handler, dict) else handler
    if isinstance(name, str) and "::" in name and name.split("::")[0] not in exports:
        export = name.split("::")[0]
        raise ManifestError(f"[exports] has no {export!r}{did_you_mean(export, exports)}")


def no_factory(event: Any) -> Any:
    """A placeholder for a factory that is not imported yet."""
    return lambda: None
