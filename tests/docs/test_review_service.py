"""The newcomer's program: a web service, two workers, a model, and kills while customers wait."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest

from harn import Runtime, consumers, event_log_read, worker_queue

SERVICE = Path(__file__).parent.parent.parent / "examples" / "review_service"
REVIEWS = 40
KEPT = 4
"""The first reviews; the web service is killed after it has accepted them."""
KILLS = 2


@dataclass(frozen=True)
class Program:
    """A copy of the program in the directory *where*, started piece by piece."""

    where: Path
    environ: dict[str, str]
    stack: ExitStack
    model: socket.socket
    web: socket.socket

    def start(self, *command: str, listens: socket.socket | None = None) -> Any:
        fds = [] if listens is None else [listens.fileno()]
        process = subprocess.Popen(
            [sys.executable, "-m", *command, *(f"--fd={fd}" for fd in fds)],
            cwd=self.where,
            env={**os.environ, **self.environ},
            pass_fds=fds,
        )
        self.stack.callback(_end, process)
        return process

    def serve(self) -> Any:
        return self.start("uvicorn", "service:app", listens=self.web)

    def post(self, number: int, wait: str) -> Any:
        query = urlencode({"customer": f"c{number % 3}", "text": str(number), "wait": wait})
        url = f"http://127.0.0.1:{self.web.getsockname()[1]}/reviews?{query}"
        with urlopen(Request(url, method="POST"), timeout=100) as answer:
            return json.load(answer)

    def limits(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "harn", "ratelimit", "ls", "--all", "--json"]
        environ = {**os.environ, **self.environ}
        told = subprocess.check_output(command, cwd=self.where, env=environ, timeout=60)
        return {each["key"]: each for each in json.loads(told)["buckets"]}


@contextmanager
def program(where: Path, storage: str) -> Iterator[Program]:
    """Copy the program and start its model; a request waits until its server has begun."""
    environ = {"HARN_STORAGE": storage, "HARN_LEASE_RENEW_MS": "300", "HARN_LEASE_MS": "2000"}
    with ExitStack() as stack:
        model, web = (stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2))
        for name in ("service.py", "tasks.py", "providers.toml"):
            text = (SERVICE / name).read_text()
            (where / name).write_text(text.replace(":11434", f":{model.getsockname()[1]}"))
        copy = Program(where, environ, stack, model, web)
        copy.start("uvicorn", "service:model", listens=model)
        yield copy


def _end(process: Any) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


async def living_workers() -> list[int]:
    listed = {each.pid for each in await consumers("reviews") if each.alive}
    return sorted(pid for pid in listed if Path(f"/proc/{pid}/status").exists())


async def workers_at_work() -> list[int]:
    async with asyncio.timeout(60):
        while len(await living_workers()) < 2:
            await asyncio.sleep(0.1)
    return await living_workers()


async def settled(job: int) -> Any:
    async with asyncio.timeout(60):
        while not (state := await worker_queue("reviews").job(job)) or not state.is_settled:
            await asyncio.sleep(0.1)
    return state


@pytest.mark.timeout(240)
@pytest.mark.parametrize("lasting_url", ["sqlite", "postgres"], indirect=True)
async def test_every_review_arrives_although_its_processes_are_killed(
    lasting_url: str, tmp_path: Path
) -> None:
    async with Runtime(storage=lasting_url):
        with program(tmp_path, lasting_url) as service:
            web = service.serve()
            work = ["--queue", "reviews", "--processes", "2", "--concurrency", "4"]
            service.start("harn", "worker", "tasks", *work)
            kept = [await asyncio.to_thread(service.post, n, "1ms") for n in range(KEPT)]
            web.kill()
            web.wait()
            service.serve()
            asked = [
                asyncio.create_task(asyncio.to_thread(service.post, n, "90s"))
                for n in range(KEPT, REVIEWS)
            ]
            for _ in range(KILLS):
                with suppress(ProcessLookupError):  # it is replaced before its lease expires
                    os.kill((await workers_at_work())[0], signal.SIGKILL)
            answers = await asyncio.gather(*asked)
            early = [await settled(each["job"]) for each in kept]
            limits = service.limits()
        states = await worker_queue("reviews").jobs(limit=1000)
        responses = await event_log_read("worker.reviews.responses")

    assert [answer["review"] for answer in answers] == ["fine"] * len(answers)
    assert [state.outcome for state in early] == ["fine"] * KEPT
    assert sorted(each["job"] for each in kept + answers) == list(range(1, REVIEWS + 1))
    assert {state.status for state in states} == {"acked"}
    acked = [each.payload["job_event_id"] for each in responses if not each.payload["error"]]
    assert sorted(acked) == list(range(1, REVIEWS + 1))
    assert limits["llm:provider:local:rpm"]["limit"] == 600


def test_the_program_is_one_that_a_newcomer_reads_in_a_minute() -> None:
    lines = [path.read_text().count("\n") for path in SERVICE.iterdir() if path.is_file()]

    assert sum(lines) < 90
