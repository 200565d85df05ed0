"""The portal of a store in this process, and a client that speaks to it."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from harn import Runtime, event_log_read, topics
from harn.orchestrator import Service
from harn.portal import Listening, bind, build_app

KEY = "the operators' key of the tests"


@dataclass
class Portal:
    runtime: Runtime
    service: Service
    client: httpx2.AsyncClient
    url: str

    async def get(self, path: str, **options: Any) -> httpx2.Response:
        return await self.client.get(f"/api/v1/{path}", **options)

    async def document(self, path: str, **options: Any) -> dict[str, Any]:
        answer = await self.get(path, **options)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def post(
        self, path: str, body: Any = None, key: str = KEY, **headers: str
    ) -> httpx2.Response:
        given = {"Authorization": f"Bearer {key}", **headers}
        return await self.client.post(f"/api/v1/{path}", json=body, headers=given)

    async def log_in(self) -> dict[str, str]:
        """Open a session as a browser does; return the headers that a POST of it needs."""
        origin = {"Origin": self.url}
        answer = await self.client.post("/portal/login", data={"key": KEY}, headers=origin)
        assert answer.status_code == 303, answer.text
        page = (await self.client.get("/portal/")).text
        token = page.split('name="csrf" content="')[1].split('"')[0]
        return {**origin, "X-CSRF-Token": token}

    async def audit(self) -> list[dict[str, Any]]:
        return [each.payload for each in await event_log_read(topics.OPERATORS_AUDIT)]


@contextlib.asynccontextmanager
async def portal(
    storage: str = "memory://",
    keys: Sequence[bytes] = (),
    *,
    read_only: bool = False,
    runtime: Runtime | None = None,
) -> AsyncIterator[Portal]:
    async with contextlib.AsyncExitStack() as stack:
        if runtime is None:
            place = stack.enter_context(tempfile.TemporaryDirectory())
            opened = Runtime(storage=storage, state_dir=Path(place) / "state")
            runtime = await stack.enter_async_context(opened)
        service = Service(runtime, None, keys)
        app = build_app(service, read_only=read_only)
        listening = await stack.enter_async_context(Listening(app, bind("127.0.0.1", 0)))
        url = f"http://{listening.address}"
        client = httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False)
        await stack.enter_async_context(client)
        try:
            yield Portal(runtime, service, client, url)
        finally:
            service.intake.draining = True  # ends the streams


async def events(portal: Portal, count: int) -> list[dict[str, Any]]:
    """Return the first *count* snapshots of a stream."""
    found: list[dict[str, Any]] = []
    async with portal.client.stream("GET", "/api/v1/events") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                break
    return found
