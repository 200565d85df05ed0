"""The example service: a web application, two workers, a model, and kills while customers wait."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from harn import Runtime, consumers, event_log_read, worker_queue
from harn.testing.fake_provider import FakeModels, Say, Slow

SERVICE = Path(__file__).parent.parent.parent / "examples" / "review_service"
REVIEWS = 40
KILLS = 3


@contextmanager
def started(command: list[str], where: Path, environ: dict[str, str]) -> Iterator[Any]:
    process = subprocess.Popen(command, cwd=where, env={**os.environ, **environ})
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, method: str = "GET", **query: str) -> Any:
    request = Request(f"{url}?{urlencode(query)}", method=method)
    with urlopen(request, timeout=60) as answer:
        return json.load(answer)


def is_up(url: str) -> bool:
    try:
        with urlopen(f"{url}/docs", None, 5):
            return True
    except URLError:
        return False


async def until_up(url: str) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(is_up, url):
            await asyncio.sleep(0.1)


async def living_workers() -> list[int]:
    listed = {each.pid for each in await consumers("reviews") if each.alive}
    return sorted(pid for pid in listed if Path(f"/proc/{pid}/status").exists())


async def workers_at_work() -> list[int]:
    async with asyncio.timeout(60):
        while len(await living_workers()) < 2:
            await asyncio.sleep(0.1)
    return await living_workers()


@pytest.mark.timeout(240)
async def test_every_review_arrives_although_workers_are_killed(
    lasting_url: str, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with (
        FakeModels(lambda body: Slow(0.3, Say("fine"))) as models,
        Runtime(storage=lasting_url),
    ):
        environ = {
            "HARN_STORAGE": lasting_url,
            "HARN_LEASE_RENEW_MS": "300",
            "HARN_LEASE_MS": "2000",
            "HARN_PROVIDERS": str(tmp_path / "providers.toml"),
        }
        text = (SERVICE / "providers.toml").read_text()
        (tmp_path / "providers.toml").write_text(
            text.replace("http://127.0.0.1:11434/v1", models.openai_url)
        )
        serve = [sys.executable, "-m", "uvicorn", "app:app", "--port", str(port)]
        work = [sys.executable, "-m", "harn", "worker", "tasks", "--queue", "reviews"]
        work += ["--processes", "2", "--concurrency", "4"]
        with ExitStack() as stack:
            stack.enter_context(started(serve, SERVICE, environ))
            stack.enter_context(started(work, SERVICE, environ))
            await until_up(url)
            asked = [
                asyncio.create_task(
                    asyncio.to_thread(
                        ask, f"{url}/reviews", "POST", customer=f"c{n % 3}", text=str(n), wait="90s"
                    )
                )
                for n in range(REVIEWS)
            ]
            for _ in range(KILLS):
                with suppress(ProcessLookupError):  # it is replaced before its lease expires
                    os.kill((await workers_at_work())[0], signal.SIGKILL)
            answers = await asyncio.gather(*asked)
        states = await worker_queue("reviews").jobs(limit=1000)
        responses = await event_log_read("worker.reviews.responses")

    assert [answer["review"] for answer in answers] == ["fine"] * REVIEWS
    assert sorted(answer["job"] for answer in answers) == list(range(1, REVIEWS + 1))
    assert {state.status for state in states} == {"acked"}
    acked = [each.payload["job_event_id"] for each in responses if not each.payload["error"]]
    assert sorted(acked) == list(range(1, REVIEWS + 1))
