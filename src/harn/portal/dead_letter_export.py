"""`/api/v1/dead-letters/export`: pending dead letters as JSON lines, some of them or all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from harn.errors import InvalidOption
from harn.escaping import to_json
from harn.orchestrator import masked
from harn.portal.http_messages import HEADERS
from harn.triggers import DeadLetters

if TYPE_CHECKING:
    from harn.runtime import Runtime

PAGE = 100
MOST_IDS = 1000
NAMED = {"Content-Disposition": 'attachment; filename="dead-letters.jsonl"'}


async def export_letters(runtime: Runtime, ids: Sequence[str]) -> Response:
    """Stream the letters *ids*, or all pending ones; an unknown id is `NotFound` before that."""
    if len(ids) > MOST_IDS or not all(isinstance(each, str) for each in ids):
        raise InvalidOption("ids", len(ids), f"at most {MOST_IDS} ids, each a text")
    letters = runtime.service(DeadLetters)
    if ids:
        found = [to_json(masked(runtime, await letters.get(each))) + "\n" for each in ids]
        lines: AsyncIterator[str] = _given(found)
    else:
        lines = _all(runtime, letters)
    return StreamingResponse(lines, media_type="application/x-ndjson", headers={**HEADERS, **NAMED})


async def _given(lines: Sequence[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line


async def _all(runtime: Runtime, letters: DeadLetters) -> AsyncIterator[str]:
    after = 0
    while True:
        page = await letters.listed(after, PAGE)
        for entry in page.entries:
            yield to_json(masked(runtime, entry)) + "\n"
        if len(page.entries) < PAGE:
            return
        after = page.last
