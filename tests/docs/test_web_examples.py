"""The web applications under `examples/web`, under real servers that are told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harn import Runtime, drain
from tests.web_servers import EXAMPLES, Served, empty_store, served, until_ready

APPLICATIONS = sorted(path for path in EXAMPLES.glob("*_app.py"))

UVICORN = ("uvicorn", "--fd={fd}")
GUNICORN = ("gunicorn", "--bind=fd://{fd}", "--workers=2", "--no-control-socket")
PRELOAD = (*GUNICORN, "--preload")

WATCH = """
import atexit, os, sys

def look():
    rooms = sys.modules.get("harn.open_runtimes")
    if rooms is not None and (rooms._started or rooms._open):
        left = [each._where for each in rooms._open]
        open(f"ended-{os.getpid()}", "w").write(f"open at exit: {left}")

atexit.register(look)  # before the application's own, so it is called after them
"""


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    return empty_store(tmp_path, monkeypatch)


async def answers_of(service: Served, paths: list[str]) -> list[Any]:
    """Ask *service*, tell it to stop while its handlers wait, and then do their jobs."""
    asked = [asyncio.create_task(service.post(f"{path}?text=to+be+or+not")) for path in paths]
    await until_ready(len(paths))
    service.tell_to_stop()
    await drain("reviews")
    return await asyncio.gather(*asked)


@pytest.mark.parametrize("name", ["fastapi_app", "starlette_app", "django_app"])
async def test_an_asgi_application_answers_what_it_began_and_then_closes_its_runtime(
    name: str, storage: str
) -> None:
    async with Runtime(storage=storage):
        with served(EXAMPLES, UVICORN, name, HARN_STORAGE=storage) as service:
            answers = await answers_of(service, ["/reviews", "/sync/reviews"])
            log = await service.log()

    assert sorted(each["job"] for each in answers) == [1, 2]
    assert {each["review"] for each in answers} == {"4 words"}
    assert "Application shutdown complete" in log
    assert "Traceback" not in log and "never awaited" not in log


@pytest.mark.parametrize(
    ("name", "server"),
    [("flask_app", PRELOAD), ("django_sync_app", GUNICORN)],
    ids=["flask under preload", "django"],
)
async def test_a_wsgi_application_answers_what_it_began_and_then_closes_its_runtime(
    name: str, server: tuple[str, ...], storage: str, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    place = {"PYTHONPATH": f"{tmp_path}:{EXAMPLES}", "HARN_STORAGE": storage}
    async with Runtime(storage=storage):
        with served(tmp_path, server, name, **place) as service:
            answers = await answers_of(service, ["/reviews"])
            log = await service.log()

    assert answers == [{"job": 1, "review": "4 words"}]
    assert [each.read_text() for each in tmp_path.glob("ended-*")] == ["open at exit: []"]
    assert "Traceback" not in log


OPENS_AT_IMPORT = """
import harn
from flask import Flask

runtime = harn.run_in_thread(state_dir="state")
runtime.__enter__()
queue = harn.worker_queue("reviews")
app = Flask(__name__)

@app.post("/<where>")
def ask(where):
    try:
        asked = queue if where == "inherited" else harn.worker_queue(where)
        return {"job": harn.from_thread(asked.enqueue, 1).job_id}
    except harn.HarnError as refused:
        return {"refused": str(refused)}
"""


async def test_under_preload_a_runtime_that_was_opened_at_import_is_refused(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(OPENS_AT_IMPORT)
    with served(tmp_path, PRELOAD, "early") as service:
        answers = [await service.post(path) for path in ("/inherited", "/named")]
        service.tell_to_stop()
        await service.log()

    for answer in answers:
        assert "before it forked" in answer["refused"]
        assert "at its first request, not at import" in answer["refused"]


@pytest.mark.parametrize("application", APPLICATIONS, ids=lambda path: path.stem)
def test_a_web_example_has_at_most_forty_lines(application: Path) -> None:
    assert application.read_text().count("\n") <= 40
