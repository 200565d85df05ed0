"""`harn log`: verify, rebuild, back up, export, import, follow and trim the event log."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from harn.cli.colours import by_word
from harn.cli.commands import HarnGroup
from harn.cli.name_completion import topics
from harn.cli.output import DURATION, emit, json_flag, say, say_json
from harn.cli.progress import live_line, shown_count
from harn.cli.stoppable import run_stoppable
from harn.cli.store_choice import insecure_flag, runtime_for
from harn.clock import iso
from harn.errors import StorageCorrupt, StorageError
from harn.escaping import one_line, to_json
from harn.masking import mask
from harn.plurals import counted
from harn.pools import leaked_slots
from harn.private_files import open_private
from harn.runtime import Runtime
from harn.storage import Damaged, Store, check_there, read_only
from harn.storage.log import (
    Importer,
    compare,
    export as export_lines,
    list_topics,
    rebuild as rebuild_indexes,
)

T = TypeVar("T")

CHUNK = 2000


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the store."""
    command = click.option(
        "--state-dir", type=click.Path(path_type=Path), help="Directory that holds the store."
    )(command)
    command = click.option("--storage", help="The store, such as postgresql://... or file:///dir.")(
        command
    )
    return insecure_flag(command)


@click.group(cls=HarnGroup)
def log() -> None:
    """Verify, rebuild, back up, export, import, follow and trim the event log."""


@log.command()
@store_options
@json_flag
def verify(storage: str | None, state_dir: Path | None, as_json: bool) -> int:
    """Read every record, fold the log and compare the result with the indexes.

    For each shared pool, every slot must be held by a process whose lease is listed.

    Exits with 1 if anything is damaged or differs. Nothing is written or repaired. Writers wait
    while the indexes are compared.
    """

    async def work(runtime: Runtime) -> dict[str, Any]:
        log, store = runtime.event_log, runtime.service(Store)
        show = shown_count("records read")
        pages, heads, records = await _checked(store), dict[str, int](), 0
        try:
            heads = await store.run(list_topics, write=False)
        except StorageCorrupt as error:
            pages.append(str(error))
        for topic in heads:
            async for page in log.pages(topic, 0, None):
                records += len(page)
                show(records)
        folded = shown_count("records folded")
        try:
            differences = await store.run(lambda: compare(progress=folded))
        except StorageCorrupt as error:
            differences = []
            pages.append(f"the indexes cannot be compared: {error}")
        slots = [] if pages else await leaked_slots(runtime)
        return {
            "storage": mask(runtime.storage_url),
            "ok": not (pages or log.damaged_total or differences or slots),
            "topics": len(heads),
            "records": records,
            "damaged": [
                {"topic": each.topic, "id": each.id, "reason": each.reason} for each in log.damaged
            ],
            "damaged_total": log.damaged_total,
            "pages": pages,
            "differences": [
                {"table": each.table, "kind": each.kind, "row": [str(v) for v in each.row]}
                for each in differences
            ],
            "slots": slots,
        }

    found = _run(storage, state_dir, work, only_read=True)
    emit(as_json, found, lambda: _verified(found))
    return 0 if found["ok"] else 1


async def _checked(store: Store) -> list[str]:
    try:
        return await store.check()
    except StorageCorrupt as error:
        return [str(error)]


@log.command()
@store_options
@json_flag
def rebuild(storage: str | None, state_dir: Path | None, as_json: bool) -> int:
    """Fold the log and replace the indexes with the result. Writers wait meanwhile."""

    async def work(runtime: Runtime) -> dict[str, int]:
        show = shown_count("records folded")
        return await runtime.service(Store).run(lambda: rebuild_indexes(progress=show))

    counts = _run(storage, state_dir, work)
    emit(
        as_json,
        {"rebuilt": counts},
        lambda: (
            "\n".join(f"{name}: {counted(rows, 'row')}" for name, rows in counts.items())
            or "there is no index to rebuild"
        ),
    )
    return 0


@log.command()
@click.argument("target", type=click.Path(path_type=Path))
@store_options
@json_flag
def backup(target: Path, storage: str | None, state_dir: Path | None, as_json: bool) -> int:
    """Copy a SQLite store to the new file TARGET, while others use the store.

    The copy is one moment of the store, complete in itself, and a store like any other.
    """
    _run(storage, state_dir, lambda runtime: runtime.backup(target))
    emit(as_json, {"backup": str(target)}, lambda: f"the store was copied to {target}")
    return 0


@log.command("export")
@click.argument("target", type=click.Path(path_type=Path, allow_dash=True))
@store_options
@json_flag
def export_(target: Path, storage: str | None, state_dir: Path | None, as_json: bool) -> int:
    """Write every record to the file TARGET (or `-`) as JSON lines.

    A record that cannot be read is left out and reported on stderr, and the exit code is 1.
    """
    damaged: list[Damaged] = []

    async def work(runtime: Runtime) -> int:
        show, count = shown_count("records written"), 0
        with _output(target) as out:
            async for line in export_lines(runtime.service(Store), damaged):
                out.write(line)
                count += 1
                show(count)
            out.flush()
        return count

    lines = _run(storage, state_dir, work)
    if str(target) != "-":
        emit(as_json, {"exported": lines}, lambda: f"{counted(lines, 'line')} written to {target}")
    for each in damaged:
        what = one_line(f"{each.topic} record {each.id}: {each.reason}")
        say(f"left out: {what}", err=True)
    return 1 if damaged else 0


@log.command("import")
@click.argument("source")
@click.option("--resume", is_flag=True, help="Continue an import that was interrupted.")
@store_options
@json_flag
def import_(
    source: str, resume: bool, storage: str | None, state_dir: Path | None, as_json: bool
) -> int:
    """Import SOURCE: a file that `export` wrote, `-` for stdin, or another store's URL.

    Offsets do not change; the indexes are rebuilt at the end. To move a log from SQLite to
    PostgreSQL: harn log import sqlite:///events.sqlite --storage postgresql://...
    """

    async def work(runtime: Runtime) -> Importer:
        store = runtime.service(Store)
        importer, show = Importer(store, resume=resume), shown_count("records imported")
        async for lines in _chunks(_source(source)):
            await importer.feed(lines)
            show(importer.records)
        await importer.finish()
        folded = shown_count("records folded")
        await store.run(lambda: rebuild_indexes(progress=folded))
        return importer

    done = _run(storage, state_dir, work, may_make=True)
    emit(
        as_json,
        {"imported": done.records, "skipped": done.skipped},
        lambda: _imported(done.records, done.skipped),
    )
    return 0


@log.command()
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

    _run(storage, state_dir, work)
    return 0


@log.command()
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

    gone = _run(storage, state_dir, work)
    emit(as_json, {"topic": topic, "removed": gone}, lambda: f"{counted(gone, 'record')} removed")
    return 0


def _run(
    storage: str | None,
    state_dir: Path | None,
    work: Callable[[Runtime], Awaitable[T]],
    *,
    may_make: bool = False,
    only_read: bool = False,
) -> T:
    """Run *work* on the store, which must exist unless the command *may_make* one.

    With *only_read* nothing is written, not even to repair what a crash left.
    """

    async def main() -> T:
        async with runtime_for(storage, state_dir) as runtime:
            if not may_make:
                check_there(runtime.storage_url)
            if only_read:
                runtime.storage_url = read_only(runtime.storage_url)
            return await work(runtime)

    return run_stoppable(main)


class _output:  # noqa: N801 - reads as a function
    """Standard output, or a new file that only its owner can read."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> BinaryIO:
        if str(self._target) == "-":
            self._file: BinaryIO = sys.stdout.buffer
        else:
            self._file = open(self._target, "xb", opener=open_private)
        return self._file

    def __exit__(self, *_: object) -> None:
        if str(self._target) != "-":
            self._file.close()


async def _source(source: str) -> AsyncIterator[bytes]:
    if "://" in source:
        check_there(source)
        async with Runtime(storage=source) as other:
            async for line in export_lines(other.service(Store)):
                yield line
        return
    if source == "-":
        for line in sys.stdin.buffer:
            yield line
        return
    if not os.path.isfile(source):  # noqa: ASYNC240 - nothing else waits in this process
        raise StorageError(f"{mask(source)} is neither a file nor a storage URL")
    with open(source, "rb") as lines:  # noqa: ASYNC230
        for line in lines:
            yield line


async def _chunks(lines: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    waiting: list[bytes] = []
    async for line in lines:
        waiting.append(line)
        if len(waiting) >= CHUNK:
            yield waiting
            waiting = []
    yield waiting


def _imported(records: int, skipped: int) -> str:
    were = "was" if skipped == 1 else "were"
    return f"{counted(records, 'record')} imported, {skipped:,} {were} there already"


def _print_event(event: Any, as_json: bool) -> None:
    if as_json:
        say_json(event.as_dict())
        return
    payload = to_json(event.payload)
    say(one_line(f"{iso(event.occurred_at_ms)} {event.id} {event.kind} {payload}"))


def _verified(found: dict[str, Any]) -> str:
    lines = [f"{counted(found['records'], 'record')} in {counted(found['topics'], 'topic')}"]
    lines += [f"page: {one_line(text)}" for text in found["pages"]]
    lines += [
        f"{by_word('damaged')}: {each['topic']} record {each['id']}: {one_line(each['reason'])}"
        for each in found["damaged"]
    ]
    lines += [
        f"index {each['table']}: {each['kind']} {one_line(' '.join(each['row']))}"
        for each in found["differences"]
    ]
    lines += [f"slot: {one_line(text)}" for text in found["slots"]]
    if found["ok"]:
        lines.append(by_word("ok"))
    else:
        lines.append(f"{by_word('damaged')}: restore a copy, or rebuild the indexes")
    return "\n".join(lines)
