"""The web applications of `examples/web` under more servers than the ordinary tests use."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harn import Runtime, drain
from tests.web_servers import EXAMPLES, empty_store, served, until_ready

for package in ("hypercorn", "granian", "uvicorn_worker"):
    pytest.importorskip(package, reason="needs the group `interop`")

GUNICORN = ("gunicorn", "--bind=fd://{fd}", "--workers=2", "--no-control-socket")
UVICORN_WORKER = "--worker-class=uvicorn_worker.UvicornWorker"
GRANIAN = ("granian", "--host=127.0.0.1", "--port={port}")

ASGI = {
    "uvicorn on asyncio": ("uvicorn", "--fd={fd}", "--loop=asyncio", "--workers=2"),
    "uvicorn on uvloop": ("uvicorn", "--fd={fd}", "--loop=uvloop"),
    "gunicorn": (*GUNICORN, UVICORN_WORKER),
    "gunicorn --preload": (*GUNICORN, UVICORN_WORKER, "--preload"),
    "hypercorn on asyncio": ("hypercorn", "--bind=fd://{fd}", "--workers=2"),
    "hypercorn on uvloop": ("hypercorn", "--bind=fd://{fd}", "--worker-class=uvloop"),
    "granian on asyncio": (*GRANIAN, "--interface=asgi", "--loop=asyncio"),
    "granian on uvloop": (*GRANIAN, "--interface=asgi", "--loop=uvloop"),
}
WSGI = {
    "gunicorn with threads": (*GUNICORN, "--threads=4"),
    "gunicorn --preload with threads": (*GUNICORN, "--threads=4", "--preload"),
    "granian": (*GRANIAN, "--interface=wsgi"),
}


async def answered(
    server: tuple[str, ...], name: str, paths: list[str], storage: str, place: Path
) -> list[object]:
    """Return the reviews that *server* answers; it stops in order, and leaves its store closed."""
    with served(EXAMPLES, server, name, HARN_STORAGE=storage) as service:
        async with Runtime(storage=storage):
            asked = [service.post(f"{path}?text=to+be+or+not") for path in paths]
            answers = asyncio.gather(*asked)
            await until_ready(len(paths))
            await drain("reviews")
            reviews = [each["review"] for each in await answers]
        service.tell_to_stop()
        assert "Traceback" not in await service.log()
    assert not list(place.glob("*-wal")), "SQLite removes it when the last connection is closed"
    return reviews


@pytest.mark.parametrize("name", ["fastapi_app", "django_app"])
@pytest.mark.parametrize("server", ASGI.values(), ids=ASGI)
async def test_an_asgi_server(
    server: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = empty_store(tmp_path, monkeypatch)

    answers = await answered(server, name, ["/reviews", "/sync/reviews"], storage, tmp_path)

    assert answers == ["4 words", "4 words"]


@pytest.mark.parametrize("name", ["flask_app", "django_sync_app"])
@pytest.mark.parametrize("server", WSGI.values(), ids=WSGI)
async def test_a_wsgi_server(
    server: tuple[str, ...], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = empty_store(tmp_path, monkeypatch)

    answers = await answered(server, name, ["/reviews"] * 3, storage, tmp_path)

    assert answers == ["4 words"] * 3


async def test_hypercorn_on_trio_is_told_that_harn_runs_on_asyncio(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = empty_store(tmp_path, monkeypatch)
    server = ("hypercorn", "--bind=fd://{fd}", "--worker-class=trio")

    with served(EXAMPLES, server, "fastapi_app", HARN_STORAGE=storage) as service:
        log = await service.log()

    assert "harn runs on asyncio, and this is called under trio" in log
