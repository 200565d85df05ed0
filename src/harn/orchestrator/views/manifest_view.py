"""A manifest and its store: triggers, events under way, circuits, dead letters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harn.clock import iso
from harn.orchestrator.manifest import read_manifest
from harn.orchestrator.manifest_triggers import ManifestTrigger, route_of
from harn.orchestrator.views.circuits_view import circuits_view
from harn.orchestrator.views.inbox_view import event_under_way
from harn.storage import Store
from harn.storage.triggers import cron_last, dead_letters, pending
from harn.triggers import check_schedule

if TYPE_CHECKING:
    from harn.runtime import Runtime

MOST_SHOWN = 100


async def inspection(runtime: Runtime, config: Path) -> dict[str, Any]:
    """Return the document of `inspect`; nothing is started or changed."""
    manifest = read_manifest(config)
    store = runtime.service(Store)
    now = runtime.clock.now_ms()
    count, waiting = await store.run(lambda: pending(MOST_SHOWN), write=False)
    depth, _ = await store.run(lambda: dead_letters(0, 1), write=False)
    return {
        "manifest": str(manifest.path),
        "triggers": [await _trigger(store, each, now) for each in manifest.triggers],
        "pending": {
            "count": count,
            "oldest": [event_under_way(each) for each in waiting],
        },
        "dlq_depth": depth,
        "circuits": await circuits_view(runtime),
    }


async def _trigger(store: Store, trigger: ManifestTrigger, now: int) -> dict[str, Any]:
    handler = trigger.handler if isinstance(trigger.handler, str) else "pool"
    if not isinstance(trigger.handler, str):
        handler = f"pool://{trigger.handler.get('pool')}"
    shown: dict[str, Any] = {
        "id": trigger.id,
        "kind": trigger.kind,
        "provider": trigger.provider,
        "handler": handler,
        "path": route_of(trigger),
    }
    if trigger.kind == "cron":
        options = {**trigger.match, **trigger.options}
        schedule = check_schedule(
            options.get("schedule"), options.get("timezone"), options.get("catchup_mode")
        )
        last = await store.run(lambda: cron_last(f"cron:{trigger.id}"), write=False)
        following = schedule.next(now)
        shown["last_at"] = None if last is None else iso(last)
        shown["next_at"] = None if following is None else iso(following)
    return shown
