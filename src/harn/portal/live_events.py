"""Server-sent events: each viewer gets the snapshot once a second, from one shared read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from harn.errors import HarnError
from harn.escaping import to_json
from harn.portal.http_messages import HEADERS, json_answer
from harn.portal.login import coded
from harn.portal.store_snapshot import Snapshots
from harn.tasks import sleep

EVERY = 1.0
"""Seconds between two snapshots for one viewer."""
MOST_VIEWERS = 200
RETRY_MS = 2000
"""How long a browser waits before it connects again."""


class LiveEvents:
    """Sends snapshots until the service drains; a viewer too many is refused, and may poll."""

    def __init__(self, snapshots: Snapshots, is_draining: Callable[[], bool]) -> None:
        self._snapshots = snapshots
        self._is_draining = is_draining
        self.viewers: int = 0

    async def answer(self, request: Request) -> Response:
        """Begin a stream of snapshots."""
        if self._is_draining():
            return json_answer(coded(503, "the service is stopping"))
        if self.viewers >= MOST_VIEWERS:
            return json_answer(coded(503, f"more than {MOST_VIEWERS} viewers; poll instead"))
        return StreamingResponse(self._stream(), media_type="text/event-stream", headers=HEADERS)

    async def _stream(self) -> AsyncIterator[str]:
        self.viewers += 1
        try:
            yield f"retry: {RETRY_MS}\n\n"
            while not self._is_draining():
                try:
                    yield await self._snapshots.event()
                except HarnError as error:  # the store is away: the viewer is told, and waits
                    yield f"event: problem\ndata: {to_json({'error': str(error)})}\n\n"
                await sleep(EVERY)
        finally:
            self.viewers -= 1
