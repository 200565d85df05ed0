"""Read the journals of pipeline pools for display, without their locks and without writing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harn.errors import StorageError
from harn.pools.journal_records import JournalState, fold
from harn.records import Record

LARGEST = 32 * 1024 * 1024
"""The size in bytes of the largest journal that is read for display."""
CHUNK = 1 << 20
MOST_FAILURES = 20


@dataclass(frozen=True, slots=True)
class JournalView(Record):
    """A summary of a journal; *note* says why there are no counts, if there are none."""

    pool: str
    pipeline_id: str
    max_concurrent: int
    counts: dict[str, int]
    failures: list[dict[str, Any]] = field(default_factory=list)
    note: str | None = None


def look_at_journals(directory: Path) -> list[JournalView]:
    """Read the journals in *directory*; blocks. Their owners may write meanwhile."""
    if not directory.is_dir():
        return []
    return [_look(path) for path in sorted(directory.glob("*.jsonl"))]


def _look(path: Path) -> JournalView:
    try:
        size = path.stat().st_size
        if size > LARGEST:
            return _unread(path, f"{size // 2**20} MiB, too large to read for display")
        with open(path, "rb") as file:
            state, _ = fold(iter(partial(file.read, CHUNK), b""))
    except (OSError, StorageError) as error:
        return _unread(path, str(error))
    return _unread(path, "empty") if state.pool is None else _summed(state)


def _unread(path: Path, why: str) -> JournalView:
    return JournalView(path.stem, "", 0, {}, note=why)


def _summed(state: JournalState) -> JournalView:
    assert state.pool is not None
    counts = Counter(task.status for task in state.tasks.values())
    counts.update(state.pool.dropped)
    newest = (state.tasks[seq] for seq in reversed(state.ended))
    failed = [task for task in newest if task.status == "failed"][:MOST_FAILURES]
    failures = [
        {"task_id": task.id, "at_ms": task.finished_at, "error": task.error} for task in failed
    ]
    pool = state.pool
    return JournalView(pool.name, pool.scope_id, pool.max_concurrent, dict(counts), failures)
