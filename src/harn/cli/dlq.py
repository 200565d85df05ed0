"""`harn orchestrator dlq`, `inspect` and `replay`: show what failed, and dispatch it again."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.ask_service import operate, work_option, work_text
from harn.cli.colours import RED, by_word, colour
from harn.cli.name_completion import triggers
from harn.cli.orchestrator_commands import DEFAULT_CONFIG
from harn.cli.output import emit, fail_line, indented
from harn.cli.tables import table
from harn.cli.target import CommandTarget, common
from harn.escaping import one_line
from harn.orchestrator import Replay, ReplayLetter, inspection
from harn.plurals import counted
from harn.runtime import Runtime
from harn.triggers import DeadLetters


@click.command()
@common
@click.option("--list", "list_", is_flag=True, help="List dead letters, the default.")
@click.option("--replay", "replay_id", metavar="ID", help="Dispatch a dead letter again.")
@click.option("--discard", "discard_id", metavar="ID", help="Discard a dead letter.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@work_option
def dlq(
    target: CommandTarget,
    list_: bool,
    replay_id: str | None,
    discard_id: str | None,
    limit: int,
    shutdown_timeout: float,
) -> int:
    """List the dead letters, replay one, or discard one.

    A letter is resolved if its dispatch succeeds and the pool tasks that this causes complete
    within --shutdown-timeout. A job that code enqueued is made ready again.
    """
    if sum((list_, replay_id is not None, discard_id is not None)) > 1:
        raise click.UsageError("--list, --replay and --discard exclude each other")
    if replay_id is not None:
        letter = ReplayLetter(letter=replay_id, work_within=shutdown_timeout)
        # A job that code enqueued is made ready again: where there is no manifest, none is needed.
        has_manifest = target.config is not None or DEFAULT_CONFIG.exists()
        return _replay(target, "replay letter", letter, needs_manifest=has_manifest)

    if discard_id is not None:
        return _discard(target, discard_id)

    async def work(runtime: Runtime) -> dict[str, Any]:
        found = await runtime.service(DeadLetters).listed(limit=limit)
        return {
            "dispatcher_dlq_depth": found.depth,
            "pending_entries": found.depth,
            "entries": found.entries,
        }

    found, note = target.look(work)
    emit(target.as_json, found, lambda: _letters(found), note)
    return 0


def _discard(target: CommandTarget, id: str) -> int:
    async def work(runtime: Runtime) -> dict[str, Any]:
        return await runtime.service(DeadLetters).discard(id)

    entry = target.run(work, may_make=False)
    emit(target.as_json, {"discarded": entry}, lambda: f"discarded {one_line(str(entry['id']))}")
    return 0


def _dead_letters(number: int) -> str:
    return colour(RED if number else "", counted(number, "dead letter"))


def _letters(found: dict[str, Any]) -> str:
    rows = [
        (
            entry.get("id"),
            entry.get("binding_id"),
            entry.get("error_class"),
            str(entry.get("error"))[:200],
        )
        for entry in found["entries"]
    ]
    listing = table(("id", "trigger", "class", "error"), rows) if rows else ""
    lines = [_dead_letters(found["pending_entries"]), listing]
    for entry in found["entries"]:
        if trace := indented(entry.get("traceback")):
            lines += ["", one_line(str(entry.get("id"))), *trace]
    return "\n".join(lines).rstrip()


@click.command()
@common
@click.argument("event_id")
@click.option("--trigger", "binding_id", shell_complete=triggers, help="Only to this trigger.")
@work_option
def replay(
    target: CommandTarget, event_id: str, binding_id: str | None, shutdown_timeout: float
) -> int:
    """Dispatch an event again, to the triggers that it reached.

    Exits with 1 unless every dispatch succeeds and the pool tasks that it causes complete within
    --shutdown-timeout.
    """
    options = Replay(event=event_id, trigger=binding_id, work_within=shutdown_timeout)
    return _replay(target, "replay", options)


def _replay(
    target: CommandTarget,
    name: str,
    options: Replay | ReplayLetter,
    *,
    needs_manifest: bool = True,
) -> int:
    document = operate(target, name, options, may_make=False, needs_manifest=needs_manifest)
    works = (f"work: {work_text(each)}" for each in document["work"])
    mappings = (_mapping_line(each["mapping"]) for each in document["handles"] if "mapping" in each)
    shown = [*map(_handle_line, document["handles"]), *map(one_line, (*mappings, *works))]
    emit(target.as_json, document, lambda: "\n".join(shown))
    failed = [handle for handle in document["handles"] if handle["status"] != "dispatched"]
    if not failed:
        return 0
    first = failed[0]
    fail_line(f"{first['binding_id']}: {first['status']}: {first.get('error')}", len(failed) - 1)
    return 1


def _mapping_line(mapping: dict[str, Any]) -> str:
    """Return whether a replay has the same pool, key and priority as before."""
    before, now = mapping["before"], mapping["now"]
    if before is None:
        return f"mapping: task {now['task']} of pool {now['pool']}; there was none before"
    if mapping["same"]:
        where = f"pool {now['pool']}, key {now['key']}, priority {now['priority']}"
        return f"mapping: as before: {where} (task {before['task']}, now {now['task']})"
    changed = [f"{name} {before[name]} is now {now[name]}" for name in mapping["differs"]]
    return f"mapping: not as before: {', '.join(changed)}"


def _handle_line(handle: dict[str, Any]) -> str:
    said = handle.get("error") or handle.get("result")
    where, what = one_line(str(handle["binding_id"])), one_line(str(said))
    return f"{where}: {by_word(handle['status'])}: {what[:500]}"


@click.command()
@common
def inspect(target: CommandTarget) -> int:
    """Show triggers, events under way, failing destinations and the number of dead letters."""

    async def work(runtime: Runtime) -> dict[str, Any]:
        return await inspection(runtime, target.config or DEFAULT_CONFIG)

    found, note = target.look(work)
    emit(target.as_json, found, lambda: _inspected(found), note)
    return 0


def _inspected(found: dict[str, Any]) -> str:
    rows = [(t["id"], t["kind"], t["handler"], t.get("next_at") or "") for t in found["triggers"]]
    parts = [table(("trigger", "kind", "handler", "next"), rows)]
    parts.append(
        f"{counted(found['pending']['count'], 'event')} under way, "
        f"{_dead_letters(found['dlq_depth'])}, "
        f"{counted(len(found['circuits']), 'circuit')} with failures"
    )
    return "\n\n".join(parts)
