"""`harn log verify` and `harn log rebuild`: the indexes beside the log, and whether they agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from harn.cli.colours import by_word
from harn.cli.log_store import run_on_store
from harn.cli.output import emit, json_flag
from harn.cli.progress import shown_count
from harn.cli.store_choice import store_options
from harn.errors import StorageCorrupt
from harn.escaping import one_line
from harn.masking import mask
from harn.plurals import counted
from harn.pools import leaked_slots
from harn.runtime import Runtime
from harn.storage import Store
from harn.storage.log import compare, list_topics, rebuild as rebuild_indexes


@click.command()
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

    found = run_on_store(storage, state_dir, work, only_read=True)
    emit(as_json, found, lambda: _verified(found))
    return 0 if found["ok"] else 1


async def _checked(store: Store) -> list[str]:
    try:
        return await store.check()
    except StorageCorrupt as error:
        return [str(error)]


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


@click.command()
@store_options
@json_flag
def rebuild(storage: str | None, state_dir: Path | None, as_json: bool) -> int:
    """Fold the log and replace the indexes with the result. Writers wait meanwhile."""

    async def work(runtime: Runtime) -> dict[str, int]:
        show = shown_count("records folded")
        return await runtime.service(Store).run(lambda: rebuild_indexes(progress=show))

    counts = run_on_store(storage, state_dir, work)
    emit(
        as_json,
        {"rebuilt": counts},
        lambda: (
            "\n".join(f"{name}: {counted(rows, 'row')}" for name, rows in counts.items())
            or "there is no index to rebuild"
        ),
    )
    return 0
