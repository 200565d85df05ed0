"""`harn orchestrator dlq`, `inspect` and `replay`: what went wrong, and once more."""

from __future__ import annotations

from typing import Any

import click

from harn.cli.orchestrator import DEFAULT_CONFIG
from harn.cli.output import emit, table
from harn.cli.where import Where, common
from harn.escaping import one_line
from harn.runtime import Runtime


@click.command()
@common
@click.option("--list", "list_", is_flag=True, help="List dead letters, the default.")
@click.option("--replay", "replay_id", metavar="ID", help="Dispatch a dead letter once more.")
@click.option("--discard", "discard_id", metavar="ID", help="Set a dead letter aside for good.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
def dlq(
    where: Where,
    list_: bool,
    replay_id: str | None,
    discard_id: str | None,
    limit: int,
) -> int:
    """List the dead letters, replay one, or discard one."""
    if sum((list_, replay_id is not None, discard_id is not None)) > 1:
        raise click.UsageError("--list, --replay and --discard exclude each other")
    if replay_id is not None:
        return _replay(where, ("letter", replay_id, None))

    if discard_id is not None:
        return _discard(where, discard_id)

    async def work(runtime: Runtime) -> dict[str, Any]:
        from harn.triggers import DeadLetters

        found = await runtime.service(DeadLetters).listed(limit=limit)
        return {
            "dispatcher_dlq_depth": found.depth,
            "pending_entries": found.depth,
            "entries": found.entries,
        }

    found, note = where.look(work)
    emit(where.as_json, found, lambda: _letters(found), note)
    return 0


def _discard(where: Where, id: str) -> int:
    async def work(runtime: Runtime) -> dict[str, Any]:
        from harn.triggers import DeadLetters

        return await runtime.service(DeadLetters).discard(id)

    entry = where.run(work, may_make=False)
    emit(where.as_json, {"discarded": entry}, lambda: f"discarded {one_line(str(entry['id']))}")
    return 0


def _letters(found: dict[str, Any]) -> str:
    rows = [
        (
            entry.get("id"),
            entry.get("binding_id"),
            entry.get("error_class"),
            str(entry.get("error"))[:80],
        )
        for entry in found["entries"]
    ]
    listing = table(("id", "trigger", "class", "error"), rows) if rows else ""
    return f"{found['pending_entries']} dead letters\n{listing}".rstrip()


@click.command()
@common
@click.argument("event_id")
@click.option("--trigger", "binding_id", help="Only to this trigger.")
def replay(where: Where, event_id: str, binding_id: str | None) -> int:
    """Dispatch an event once more, to the triggers that it went to."""
    return _replay(where, ("event", event_id, binding_id))


def _replay(where: Where, wanted: tuple[str, str, str | None]) -> int:
    async def work(runtime: Runtime) -> list[dict[str, Any]]:
        from harn.orchestrator import Service
        from harn.triggers import DeadLetters

        await Service(runtime, where.config or DEFAULT_CONFIG).start_triggers()
        letters = runtime.service(DeadLetters)
        what, id, binding_id = wanted
        if what == "letter":
            return [(await letters.replay(id)).as_dict()]
        return [handle.as_dict() for handle in await letters.replay_event(id, binding_id)]

    handles = where.run(work, may_make=False)
    failed = [handle for handle in handles if handle["status"] != "dispatched"]
    emit(where.as_json, {"handles": handles}, lambda: "\n".join(map(_handle_line, handles)))
    return 1 if failed or not handles else 0


def _handle_line(handle: dict[str, Any]) -> str:
    said = handle.get("error") or handle.get("result")
    return one_line(f"{handle['binding_id']}: {handle['status']}: {said}"[:500])


@click.command()
@common
def inspect(where: Where) -> int:
    """Show the triggers, events under way, failing destinations and how many dead letters."""

    async def work(runtime: Runtime) -> dict[str, Any]:
        from harn.orchestrator import inspection

        return await inspection(runtime, where.config or DEFAULT_CONFIG)

    found, note = where.look(work)
    emit(where.as_json, found, lambda: _inspected(found), note)
    return 0


def _inspected(found: dict[str, Any]) -> str:
    rows = [(t["id"], t["kind"], t["handler"], t.get("next_at") or "") for t in found["triggers"]]
    parts = [table(("trigger", "kind", "handler", "next"), rows)]
    parts.append(
        f"{found['pending']['count']} events under way, {found['dlq_depth']} dead letters, "
        f"{len(found['circuits'])} circuits with failures"
    )
    return "\n\n".join(parts)
