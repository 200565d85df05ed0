"""`[[triggers]]`: a manifest's tables as records; `trigger_checks.py` checks their parts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

import msgspec

from harn.errors import HarnError, did_you_mean
from harn.orchestrator.body_formats import BodyFormat
from harn.orchestrator.manifest_errors import Problems
from harn.orchestrator.manifest_exports import Exports
from harn.orchestrator.secret_names import SecretName, check_secrets
from harn.orchestrator.trigger_checks import check_export, check_parts, check_reference, no_factory
from harn.triggers import FROM_MANIFEST, OPTIONS, Binding, LocalTarget, SpawnToPool, check_binding

TRIGGER_KEYS = (
    *("id", "kind", "provider", "match", "filter", "handler", "path", "body"),
    *("tenant_id", "secrets", *OPTIONS),
)


class ManifestTrigger(msgspec.Struct, frozen=True):
    """A `[[triggers]]` table, checked as far as possible without importing its handler."""

    id: str
    kind: str
    provider: str
    match: Mapping[str, Any]
    handler: str | Mapping[str, Any]
    options: Mapping[str, Any]
    path: str | None = None
    body: BodyFormat = "json"
    tenant_id: str | None = None
    secrets: Mapping[str, tuple[SecretName, ...]] = {}
    number: int = 0
    """Its place among the manifest's triggers, from 0."""

    @property
    def priority(self) -> str:
        """The priority of jobs that this trigger enqueues."""
        given = self.options.get("priority")
        return given if isinstance(given, str) else "normal"

    @property
    def is_local(self) -> bool:
        """Whether its handler runs in this process."""
        handler = self.handler if isinstance(self.handler, str) else ""
        return "://" not in handler or handler.startswith("channel://")


def read_triggers(
    document: Mapping[str, Any], exports: Collection[str], problems: Problems
) -> Iterator[ManifestTrigger]:
    """Yield every trigger without a mistake; add the mistakes of the others to *problems*."""
    if not _is_list_of_tables(document):
        problems.add("triggers", "", "a list of tables: write [[triggers]]")
        return
    seen: dict[str, int] = {}
    for number, table in enumerate(document.get("triggers", [])):
        where = f"triggers[{number}]"
        trigger = _trigger(table, number, problems)
        problems.attempt(where, "handler", partial(check_export, table.get("handler"), exports))
        if trigger is None:
            continue
        if trigger.id in seen:
            problems.add(where, "id", f"{trigger.id!r} is also triggers[{seen[trigger.id]}]")
        seen.setdefault(trigger.id, number)
        yield trigger


def check_handlers(document: Mapping[str, Any], exports: Exports, problems: Problems) -> None:
    """Import every handler that is written correctly, also of triggers with other mistakes."""
    if not _is_list_of_tables(document):
        return
    for number, table in enumerate(document.get("triggers", [])):
        handler = table.get("handler")
        try:
            check_reference(handler)
            check_export(handler, exports.names)
        except HarnError:
            continue  # `read_triggers` has reported it
        problems.attempt(f"triggers[{number}]", "handler", partial(handler_of, handler, exports))


def _is_list_of_tables(document: Mapping[str, Any]) -> bool:
    tables = document.get("triggers", [])
    return isinstance(tables, list) and all(isinstance(each, dict) for each in tables)


def _trigger(table: dict[str, Any], number: int, problems: Problems) -> ManifestTrigger | None:
    before, where = len(problems.found), f"triggers[{number}]"
    for key in table:
        if key not in TRIGGER_KEYS:
            problems.add(where, key, f"no such key{did_you_mean(key, TRIGGER_KEYS)}")
    for key in ("id", "kind", "provider", "handler"):
        if key not in table:
            problems.add(where, key, "is missing")
    if len(problems.found) > before:
        check_parts(table, where, problems)
        return None
    trigger = ManifestTrigger(
        id=table["id"],
        kind=table["kind"],
        provider=table["provider"],
        match=_match(table),
        handler=table["handler"],
        options={key: table[key] for key in OPTIONS if key in table},
        path=table.get("path") or _inner(table, "path"),
        body=table.get("body", "json"),
        tenant_id=table.get("tenant_id"),
        secrets=_secrets(table, where, problems),
        number=number,
    )
    check_parts(table, where, problems)
    if len(problems.found) == before:
        _check_whole(trigger, where, problems)
    return trigger if len(problems.found) == before else None


def _match(table: Mapping[str, Any]) -> Any:
    match = table.get("match", {})
    if isinstance(match, dict) and "filter" in table:
        return {**match, "filter": table["filter"]}
    return match


def _inner(table: Mapping[str, Any], key: str) -> Any:
    match = table.get("match")
    return match.get(key) if isinstance(match, dict) else None


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
    """Check the trigger as a whole: some mistakes are in the combination of its parts."""
    problems.attempt(where, "", lambda: binding_of(trigger, no_factory))


def route_of(trigger: ManifestTrigger) -> str | None:
    """Return the path on which *trigger* is served, or None if it is not."""
    if trigger.kind not in ("webhook", "a2a-push"):
        return None
    return trigger.path or f"/triggers/{trigger.id}"


def handler_of(handler: str | Mapping[str, Any], exports: Exports) -> Any:
    """Return the handler that the manifest names, imported if it is one of its exports."""
    if isinstance(handler, str):
        if "://" in handler:
            return handler
        found = exports.resolve(handler)
        # The URI is the manifest's name for it, so its circuit is kept when the code changes.
        return found if hasattr(found, "deliver") else LocalTarget(found, f"local://{handler}")
    return SpawnToPool(
        handler["pool"],
        exports.resolve(handler["task_factory"]),
        handler.get("priority_from"),
        handler.get("key_from"),
    )


def binding_of(trigger: ManifestTrigger, handler: Any) -> Binding:
    """Return the checked binding of *trigger*; `path` is the service's, and no part of a match."""
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
    """Return why a trigger cannot be served over HTTP: it has no secret to verify senders with."""
    if trigger.kind == "webhook" and not trigger.secrets.get("signing"):
        return 'a webhook is served with secrets = { signing = "NAME" }'
    proofs = trigger.secrets.get("bearer") or trigger.secrets.get("signing")
    if trigger.kind == "a2a-push" and not proofs:
        return 'a2a-push is served with secrets = { bearer = "NAME" }'
    return None
