"""`[[triggers]]`: a manifest's tables, checked part by part: no mistake hides another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from harn.errors import ManifestError, did_you_mean
from harn.orchestrator.exports import Exports, split_reference
from harn.orchestrator.problems import Problems
from harn.orchestrator.secrets import SecretName, check_secrets
from harn.triggers import (
    FROM_MANIFEST,
    Binding,
    LocalTarget,
    SpawnToPool,
    check_binding,
    check_handler,
    check_id,
    check_kind,
    check_match,
    check_tenant,
)

TRIGGER_KEYS = (
    *("id", "kind", "provider", "match", "handler", "priority", "path", "tenant_id", "secrets"),
    *("batch", "debounce", "rate_limit", "throttle", "singleton", "concurrency"),
    *("retry", "dedupe_key", "schedule", "timezone", "catchup_mode", "filter"),
)
POOL_KEYS = ("pool", "task_factory", "priority_from", "key_from")


@dataclass(frozen=True, slots=True)
class ManifestTrigger:
    """A `[[triggers]]` table, checked as far as it can be without importing its handler."""

    id: str
    kind: str
    provider: str
    match: Mapping[str, Any]
    handler: str | Mapping[str, Any]
    options: Mapping[str, Any]
    path: str | None = None
    tenant_id: str | None = None
    secrets: Mapping[str, tuple[SecretName, ...]] = field(default_factory=dict)

    @property
    def priority(self) -> str:
        """The priority of jobs that this trigger enqueues."""
        given = self.options.get("priority")
        return given if isinstance(given, str) else "normal"

    @property
    def is_local(self) -> bool:
        """Whether its handler runs in this process, rather than being handed on."""
        return not isinstance(self.handler, str) or "://" not in self.handler


def read_triggers(
    document: Mapping[str, Any], exports: Mapping[str, str], problems: Problems
) -> Iterator[ManifestTrigger]:
    """Read every trigger that is right; the others are mistakes."""
    tables = document.get("triggers", [])
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        problems.add("triggers", "", "a list of tables: write [[triggers]]")
        return
    seen: dict[str, int] = {}
    for number, table in enumerate(tables):
        where = f"triggers[{number}]"
        trigger = _trigger(table, where, problems)
        problems.attempt(where, "handler", partial(_check_export, table.get("handler"), exports))
        if trigger is None:
            continue
        if trigger.id in seen:
            problems.add(where, "id", f"{trigger.id!r} is also triggers[{seen[trigger.id]}]")
        seen.setdefault(trigger.id, number)
        yield trigger


def _trigger(table: dict[str, Any], where: str, problems: Problems) -> ManifestTrigger | None:
    before = len(problems.found)
    for key in table:
        if key not in TRIGGER_KEYS:
            problems.add(where, key, f"no such key{did_you_mean(key, TRIGGER_KEYS)}")
    for key in ("id", "kind", "provider", "handler"):
        if key not in table:
            problems.add(where, key, "is missing")
    if len(problems.found) > before:
        _check_parts(table, where, problems)
        return None
    trigger = ManifestTrigger(
        id=table["id"],
        kind=table["kind"],
        provider=table["provider"],
        match=_match(table),
        handler=table["handler"],
        options={key: table[key] for key in TRIGGER_KEYS if key in table and key in _OPTIONS},
        path=table.get("path") or _inner(table, "path"),
        tenant_id=table.get("tenant_id"),
        secrets=_secrets(table, where, problems),
    )
    _check_parts(table, where, problems)
    if len(problems.found) == before:
        _check_whole(trigger, where, problems)
    return trigger if len(problems.found) == before else None


_OPTIONS = (*TRIGGER_KEYS[9:-1], "priority")
_GATES = ("batch", "debounce", "rate_limit", "throttle", "singleton", "concurrency")


def _match(table: Mapping[str, Any]) -> Any:
    match = table.get("match", {})
    if isinstance(match, dict) and "filter" in table:
        return {**match, "filter": table["filter"]}
    return match


def _inner(table: Mapping[str, Any], key: str) -> Any:
    match = table.get("match")
    return match.get(key) if isinstance(match, dict) else None


def _check_parts(table: Mapping[str, Any], where: str, problems: Problems) -> None:
    """Check every part by itself, so that one mistake does not hide another."""
    plain: dict[str, Any] = {
        "id": "x",
        "kind": "channel.emit",
        "provider": "channel",
        "match": {},
        "handler": print,
    }
    if "id" in table:
        problems.attempt(where, "id", lambda: check_id(table["id"]))
    if "kind" in table:
        problems.attempt(where, "kind", lambda: check_kind(table["kind"]))
    if "match" in table:
        problems.attempt(where, "match", lambda: check_match(_match(table)))
    if "handler" in table:
        problems.attempt(where, "handler", lambda: _check_reference(table["handler"]))
    for key in (*_GATES, "retry", "dedupe_key"):
        if key in table:
            options = {key: table[key]}
            check = partial(check_binding, **plain, options=options, default_retry=FROM_MANIFEST)
            problems.attempt(where, key, check)
    if "tenant_id" in table:
        problems.attempt(where, "tenant_id", lambda: check_tenant(table["tenant_id"]))


def _check_reference(handler: Any) -> None:
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
            _nothing,
            handler.get("priority_from"),
            handler.get("key_from"),
        )
    elif not isinstance(handler, str):
        raise ManifestError('"export::function", "worker://queue", "a2a://host/path", or a pool')
    elif "://" in handler:
        check_handler(handler)
    else:
        split_reference(handler)


def _check_export(handler: Any, exports: Mapping[str, str]) -> None:
    name = handler.get("task_factory") if isinstance(handler, dict) else handler
    if isinstance(name, str) and "::" in name and name.split("::")[0] not in exports:
        export = name.split("::")[0]
        raise ManifestError(f"[exports] has no {export!r}{did_you_mean(export, exports)}")


def _nothing(event: Any) -> Any:
    """Stand in for a factory that is not imported yet."""
    return lambda: None


def _secrets(
    table: Mapping[str, Any], where: str, problems: Problems
) -> dict[str, tuple[SecretName, ...]]:
    given = table.get("secrets", {})
    kinds = ("signing", "bearer", "a2a")
    if not isinstance(given, dict):
        problems.add(where, "secrets", f"a table with {', '.join(kinds)}")
        return {}
    found = {}
    for name, value in given.items():
        if name not in kinds:
            problems.add(where, f"secrets.{name}", f"no such key{did_you_mean(name, kinds)}")
            continue
        read = problems.attempt(where, f"secrets.{name}", partial(check_secrets, name, value))
        if read:
            found[name] = read
    return found


def _check_whole(trigger: ManifestTrigger, where: str, problems: Problems) -> None:
    """Check what only the whole trigger shows."""
    problems.attempt(where, "", lambda: binding_of(trigger, _nothing))
    if trigger.kind == "stream" and not _inner({"match": trigger.match}, "topic"):
        problems.add(where, "match", 'a stream needs match = { topic = "..." }')
    if trigger.path is not None:
        is_path = isinstance(trigger.path, str) and trigger.path.startswith("/")
        if not is_path or len(trigger.path) > 200 or not trigger.path.isprintable():
            problems.add(where, "path", 'a path such as "/hooks/github"')
        elif trigger.kind not in ("webhook", "a2a-push"):
            problems.add(where, "path", "only for webhook and a2a-push")


def route_of(trigger: ManifestTrigger) -> str | None:
    """Return the path on which *trigger* is served, or None if it is not."""
    if trigger.kind not in ("webhook", "a2a-push"):
        return None
    return trigger.path or f"/triggers/{trigger.id}"


def handler_of(handler: str | Mapping[str, Any], exports: Exports) -> Any:
    if isinstance(handler, str):
        if "://" in handler:
            return handler
        found = exports.resolve(handler)
        # Named as the manifest names it: a circuit outlives the next version of the code.
        return found if hasattr(found, "deliver") else LocalTarget(found, f"local://{handler}")
    return SpawnToPool(
        handler["pool"],
        exports.resolve(handler["task_factory"]),
        handler.get("priority_from"),
        handler.get("key_from"),
    )


def binding_of(trigger: ManifestTrigger, handler: Any) -> Binding:
    match = {key: value for key, value in trigger.match.items() if key != "path"}
    return check_binding(
        id=trigger.id,
        kind=trigger.kind,
        provider=trigger.provider,
        match=match,
        handler=handler,
        options=trigger.options,
        default_retry=FROM_MANIFEST,
    )


def unservable(trigger: ManifestTrigger) -> str | None:
    """Say why a trigger cannot be served over HTTP: nobody could prove who they are."""
    if trigger.kind == "webhook" and not trigger.secrets.get("signing"):
        return 'a webhook is served with secrets = { signing = "NAME" }'
    proofs = trigger.secrets.get("bearer") or trigger.secrets.get("signing")
    if trigger.kind == "a2a-push" and not proofs:
        return 'a2a-push is served with secrets = { bearer = "NAME" }'
    return None
