"""`harn log backup`, `export` and `import`: a log is copied, or moved to another store."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import click

from harn.cli.log_store import run_on_store
from harn.cli.output import emit, json_flag, say
from harn.cli.progress import shown_count
from harn.cli.store_choice import store_options
from harn.errors import StorageError
from harn.escaping import one_line
from harn.masking import mask
from harn.plurals import counted
from harn.private_files import open_private
from harn.runtime import Runtime
from harn.storage import Damaged, Store, check_there
from harn.storage.log import Importer, export as export_lines, rebuild as rebuild_indexes

CHUNK = 2000


@click.command()
@click.argument("target", type=click.Path(path_type=Path))
@store_options
@json_flag
def backup(target: Path, storage: str | None, state_dir: Path | None, as_json: bool) -> int:
    """Copy a SQLite store to the new file TARGET, while others use the store.

    The copy is one moment of the store, complete in itself, and a store like any other.
    """
    run_on_store(storage, state_dir, lambda runtime: runtime.backup(target))
    emit(as_json, {"backup": str(target)}, lambda: f"the store was copied to {target}")
    return 0


@click.command()
@click.argument("target", type=click.Path(path_type=Path, allow_dash=True))
@store_options
@json_flag
def export(target: Path, storage: str | None, state_dir: Path | None, as_json: bool) -> int:
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

    lines = run_on_store(storage, state_dir, work)
    if str(target) != "-":
        emit(as_json, {"exported": lines}, lambda: f"{counted(lines, 'line')} written to {target}")
    for each in damaged:
        what = one_line(f"{each.topic} record {each.id}: {each.reason}")
        say(f"left out: {what}", err=True)
    return 1 if damaged else 0


class _output:  # noqa: N801 - reads as a function
    """Standard output, or a new file that only its owner can read."""

    def __init__(self, target: Path) -> None:
        self._target = target

    def __enter__(self) -> BinaryIO:
        if str(self._target) == "-":
            self._file: BinaryIO = sys.stdout.buffer
        else:
            try:
                self._file = open(self._target, "xb", opener=open_private)
            except FileExistsError:
                raise StorageError(f"{self._target} exists already; name a new file") from None
        return self._file

    def __exit__(self, *_: object) -> None:
        if str(self._target) != "-":
            self._file.close()


@click.command("import")
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

    done = run_on_store(storage, state_dir, work, may_make=True)
    emit(
        as_json,
        {"imported": done.records, "skipped": done.skipped},
        lambda: _imported(done.records, done.skipped),
    )
    return 0


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
