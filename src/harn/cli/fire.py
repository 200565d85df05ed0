"""`harn orchestrator fire`: one event for one trigger of the manifest, by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from harn.cli.output import emit
from harn.cli.target import CommandTarget, common
from harn.cli.wait_for_work import Finishing, fail_line, work_option
from harn.errors import HarnError, TriggerError, did_you_mean
from harn.escaping import one_line
from harn.orchestrator import Manifest, Service
from harn.pools import WorkDone, causing
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.log import list_topics
from harn.triggers import DispatchHandle, Triggers

SHOWN = (
    *("binding_id", "binding_version", "event_id", "status"),
    *("replay_of_event_id", "dlq_entry_id", "error", "result"),
)


@click.command()
@click.argument("trigger")
@click.option("--payload", help="JSON, or @FILE that holds it.")
@click.option("--tenant", help="The tenant on whose behalf.")
@work_option
@common
def fire(
    target: CommandTarget,
    trigger: str,
    payload: str | None,
    tenant: str | None,
    shutdown_timeout: float,
) -> int:
    """Fire TRIGGER and wait for what becomes of it and of the pool tasks that it causes.

    Exits with 1 if it ends in the dead letters, or if a pool task does not complete within
    --shutdown-timeout.
    """
    manifest = target.manifest()
    if manifest.setup is None:
        _check_known(trigger, manifest, ())
    value = _payload(payload)

    async def work(runtime: Runtime) -> tuple[DispatchHandle, WorkDone]:
        await runtime.service(Store).run(list_topics, write=False)  # a store out of reach: one line
        await Service(runtime, manifest.path).start_by_hand([trigger])
        triggers = runtime.service(Triggers)
        _check_known(trigger, manifest, [each.id for each in triggers.active()])
        with causing() as caused:
            handle = await triggers.fire(trigger, value, **_fields(manifest, trigger, tenant))
        return handle, await Finishing(runtime, shutdown_timeout)(caused)

    handle, done = target.run(work)
    document = {**handle.as_dict(), "work": done.as_dict()}
    emit(target.as_json, document, lambda: _shown(document, done))
    if handle.status == "dispatched" and done.is_well:
        return 0
    fail_line(_failure(handle) if handle.status != "dispatched" else f"{trigger}: {done}")
    return 1


def _check_known(trigger: str, manifest: Manifest, registered: Sequence[str]) -> None:
    """Refuse a trigger that neither the manifest nor its setup knows."""
    known = [*(each.id for each in manifest.triggers), *registered]
    if trigger not in known:
        near = did_you_mean(trigger, known)
        raise TriggerError(f"{manifest.path.name} has no trigger {trigger!r}{near}")


def _fields(manifest: Manifest, trigger: str, tenant: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"headers": {"x-harn-synthetic": "true"}}
    found = manifest.trigger(trigger)
    if tenant := tenant or (found.tenant_id if found is not None else None):
        fields["tenant_id"] = tenant
    return fields


def _failure(handle: DispatchHandle) -> str:
    if handle.status == "dlq":
        return f"{handle.binding_id}: dead letter {handle.dlq_entry_id}: {handle.error}"
    return f"{handle.binding_id}: {handle.status}: {handle.error or 'it did not end'}"


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


def _shown(document: dict[str, Any], done: WorkDone) -> str:
    lines = []
    for name in SHOWN:
        if document.get(name) is not None:
            value = document[name]
            text = json.dumps(value, default=str) if name == "result" else str(value)
            lines.append(f"{name}: {one_line(text)}")
    lines.append(f"work: {one_line(str(done))}")
    return "\n".join(lines)
