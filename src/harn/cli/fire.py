"""`harn orchestrator fire`: one event for one trigger of the manifest, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from harn.cli.output import emit
from harn.cli.where import Where, common
from harn.errors import HarnError, TriggerError, did_you_mean
from harn.escaping import one_line
from harn.runtime import Runtime
from harn.storage import Store, list_topics
from harn.triggers import DispatchHandle, Triggers

SHOWN = (
    *("binding_id", "binding_version", "event_id", "status"),
    *("replay_of_event_id", "dlq_entry_id", "error", "result"),
)


@click.command()
@click.argument("trigger")
@click.option("--payload", help="JSON, or @FILE that holds it.")
@click.option("--tenant", help="The tenant on whose behalf.")
@common
def fire(where: Where, trigger: str, payload: str | None, tenant: str | None) -> int:
    """Fire TRIGGER and wait for what becomes of it; exits with 1 if that is the dead letters."""
    manifest = where.manifest()
    found = manifest.trigger(trigger)
    if found is None:
        near = did_you_mean(trigger, [each.id for each in manifest.triggers])
        raise TriggerError(f"{manifest.path.name} has no trigger {trigger!r}{near}")
    value = _payload(payload)

    async def work(runtime: Runtime) -> DispatchHandle:
        from harn.orchestrator import Service

        await runtime.service(Store).run(list_topics, write=False)  # a store out of reach: one line
        await Service(runtime, manifest.path).start_triggers(only=trigger)
        fields: dict[str, Any] = {"headers": {"x-harn-synthetic": "true"}}
        if tenant or found.tenant_id:
            fields["tenant_id"] = tenant or found.tenant_id
        return await runtime.service(Triggers).fire(trigger, value, **fields)

    handle = where.run(work)
    document = handle.as_dict()
    emit(where.as_json, document, lambda: _shown(document))
    return 1 if handle.status == "dlq" else 0


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text("utf-8")
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HarnError(f"--payload is not JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"it knows no {name}")


def _shown(document: dict[str, Any]) -> str:
    lines = []
    for name in SHOWN:
        if document.get(name) is not None:
            value = document[name]
            text = json.dumps(value, default=str) if name == "result" else str(value)
            lines.append(f"{name}: {one_line(text)}")
    return "\n".join(lines)
