"""`harn log tail` and `harn log trim`: the records of one topic, printed or removed."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import click

from harn.cli.log_store import run_on_store
from harn.cli.name_completion import topics
from harn.cli.output import DURATION, emit, json_flag, say, say_json
from harn.cli.progress import live_line
from harn.cli.store_choice import store_options
from harn.clock import iso
from harn.escaping import one_line, to_json
from harn.plurals import counted
from harn.runtime import Runtime


@click.command()
@click.argument("topic", shell_complete=topics)
@click.option("--after", type=click.IntRange(min=0), help="Start after this offset, not now.")
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--follow/--no-follow", default=True, help="Wait for more, or stop at the end.")
@store_options
@json_flag
def tail(
    topic: str,
    after: int | None,
    limit: int | None,
    follow: bool,
    storage: str | None,
    state_dir: Path | None,
    as_json: bool,
) -> int:
    """Print the records of TOPIC as they arrive, one per line; with --json, each as JSON."""
    live_line.stop_ticking()

    async def work(runtime: Runtime) -> None:
        log, left = runtime.event_log, limit
        events: AsyncIterator[Any] = (
            log.subscribe(topic, after) if follow else log.stream(topic, after or 0)
        )
        async for event in events:
            _print_event(event, as_json)
            sys.stdout.flush()
            if left is not None and (left := left - 1) == 0:
                return

    run_on_store(storage, state_dir, work)
    return 0


def _print_event(event: Any, as_json: bool) -> None:
    if as_json:
        say_json(event.as_dict())
        return
    payload = to_json(event.payload)
    say(one_line(f"{iso(event.occurred_at_ms)} {event.id} {event.kind} {payload}"))


@click.command()
@click.argument("topic", shell_complete=topics)
@click.option("--keep", type=click.IntRange(min=0), help="Keep this many of the newest records.")
@click.option("--older-than", type=DURATION, help="Remove records older than this, such as 7d.")
@click.option("--force", is_flag=True, help="Remove also what is not settled or not read.")
@store_options
@json_flag
def trim(
    topic: str,
    keep: int | None,
    older_than: float | None,
    force: bool,
    storage: str | None,
    state_dir: Path | None,
    as_json: bool,
) -> int:
    """Remove old records of TOPIC that are settled; offsets continue as before."""
    if keep is None and older_than is None:
        raise click.UsageError("give --keep or --older-than")

    async def work(runtime: Runtime) -> int:
        before = None if older_than is None else runtime.clock.now_ms() - round(older_than * 1000)
        return await runtime.event_log.trim(topic, keep=keep, before_ms=before, force=force)

    gone = run_on_store(storage, state_dir, work)
    emit(as_json, {"topic": topic, "removed": gone}, lambda: f"{counted(gone, 'record')} removed")
    return 0
