"""`harn orchestrator fire`: dispatch one event to one trigger of the manifest."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harn.cli.ask_service import operate, work_option, work_text
from harn.cli.colours import by_word
from harn.cli.name_completion import triggers
from harn.cli.output import emit, fail_line
from harn.cli.target import CommandTarget, common
from harn.errors import HarnError, TriggerError, did_you_mean
from harn.escaping import one_line
from harn.orchestrator import Fire

if TYPE_CHECKING:
    from harn.orchestrator import Manifest

SHOWN = (
    *("binding_id", "binding_version", "event_id", "status"),
    *("replay_of_event_id", "dlq_entry_id", "error", "result"),
)


@click.command()
@click.argument("trigger", shell_complete=triggers)
@click.option("--payload", help="JSON, or @FILE with JSON in it.")
@click.option("--tenant", help="The tenant of the event.")
@work_option
@common
def fire(
    target: CommandTarget,
    trigger: str,
    payload: str | None,
    tenant: str | None,
    shutdown_timeout: float,
) -> int:
    """Fire TRIGGER and wait for its handler and for the pool tasks that it causes.

    Exits with 1 if the event becomes a dead letter, or if a pool task does not complete within
    --shutdown-timeout.
    """
    options = Fire(
        trigger=trigger, payload=_payload(payload), tenant=tenant, work_within=shutdown_timeout
    )
    document = operate(
        target, "fire", options, wanted=[trigger], check=partial(_check_known, trigger)
    )
    work = document["work"]
    emit(target.as_json, document, lambda: _shown(document))
    is_dispatched = document["status"] == "dispatched"
    if is_dispatched and "reason" not in work:
        return 0
    fail_line(f"{trigger}: {work['reason']}" if is_dispatched else _failure(document))
    return 1


def _check_known(trigger: str, manifest: Manifest) -> None:
    """Raise if the manifest has no such trigger; with a setup, the setup may register it."""
    known = [each.id for each in manifest.triggers]
    if manifest.setup is None and trigger not in known:
        near = did_you_mean(trigger, known)
        raise TriggerError(f"{manifest.path.name} has no trigger {trigger!r}{near}")


def _failure(document: dict[str, Any]) -> str:
    said = document.get("error")
    if document["status"] == "dlq":
        return f"{document['binding_id']}: dead letter {document['dlq_entry_id']}: {said}"
    return f"{document['binding_id']}: {document['status']}: {said or 'it did not end'}"


def _payload(text: str | None) -> Any:
    if text is None:
        return None
    try:
        if text.startswith("@"):
            text = _read(text[1:])
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise HarnError(f"--payload is not JSON: {error}") from None


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except OSError as error:
        raise HarnError(f"--payload: {path} cannot be read: {error.strerror}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"JSON has no {name}")


def _shown(document: dict[str, Any]) -> str:
    lines = []
    for name in SHOWN:
        if document.get(name) is not None:
            value = document[name]
            text = json.dumps(value, default=str) if name == "result" else str(value)
            shown = by_word(text) if name == "status" else one_line(text)
            lines.append(f"{name}: {shown}")
    lines.append(f"work: {one_line(work_text(document['work']))}")
    return "\n".join(lines)
