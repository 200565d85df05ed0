"""Ctrl-C and SIGTERM to commands, as real processes: the exit code, one line, nothing lost."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import harn
from harn.cli import invoke
from tests.orchestrator.processes import serving, until
from tests.signalled import Ended, Program, command

MANIFEST = """
[exports]
handlers = "handlers.py"
[orchestrator]
setup = "handlers::setup"
[[triggers]]
id = "work"
kind = "channel.emit"
provider = "channel"
match = { events = ["channel:work"] }
handler = "handlers::HANDLER"
"""
HANDLERS = """
import asyncio, os, pathlib, time
import harn

HERE = pathlib.Path(__file__).parent

def begun():
    print("begun", flush=True)

async def setup():
    if (HERE / "slow").exists():
        begun()
        await asyncio.sleep(3600)

async def waits(event):
    begun()
    await asyncio.sleep(3600)

async def goes_on(event):
    (HERE / "begun").touch()
    while not (HERE / "go").exists():
        await asyncio.sleep(0.01)
    (HERE / "done").touch()

def note(event):
    begun()

def fails(event):
    begun()
    raise RuntimeError("boom")

async def sleeps(event):
    begun()
    await harn.sleep("1h")

def thread(event):
    begun()
    time.sleep(3600)
"""
SIGNALS = [signal.SIGTERM, signal.SIGINT]
SAID = {
    signal.SIGTERM: (143, "error: stopped by SIGTERM\n"),
    signal.SIGINT: (130, "error: interrupted\n"),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A manifest whose trigger sends to a queue, and another that handles its jobs."""
    (tmp_path / "handlers.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "waits")
    return tmp_path


def write(place: Path, handler: str) -> None:
    (place / "harn.toml").write_text(MANIFEST.replace("HANDLER", handler))


def queue_a_job(place: Path) -> None:
    text = MANIFEST.replace("handlers::HANDLER", "worker://jobs")
    (place / "producer.toml").write_text(text)
    assert invoke(["orchestrator", "fire", "work", "--config", "producer.toml", *STATE]) == 0


STATE = ["--state-dir", "state"]


@contextmanager
def cli(*argv: str) -> Iterator[Program]:
    with command([sys.executable, "-m", "harn", *argv]) as running:
        yield running


def claimable() -> int | None:
    """Claim the job of the queue as another process would, and return its attempt."""

    async def claim() -> int | None:
        found = await harn.worker_queue("jobs").claim_next("another")
        return None if found is None else found.attempt

    attempt: int | None = harn.run(claim, state_dir="state")
    return attempt


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("handler", ["waits", "sleeps", "thread"])
def test_65_a_drain_gives_its_job_back_within_its_timeout(
    place: Path, handler: str, number: int
) -> None:
    queue_a_job(place)
    write(place, handler)
    drain = ["orchestrator", "queue", "drain", "jobs", "--shutdown-timeout", "500ms", *STATE]
    with cli(*drain) as running:
        running.reports("begun")
        running.signal(number)
        ended = running.ends()

    assert ended.code == 0 and "Traceback" not in ended.err
    assert claimable() == 1


@pytest.mark.parametrize("handler", ["waits", "thread"])
def test_a_second_signal_to_a_drain_gives_its_job_back_at_once(place: Path, handler: str) -> None:
    queue_a_job(place)
    write(place, handler)
    drain = ["orchestrator", "queue", "drain", "jobs", "--shutdown-timeout", "1h", *STATE]
    with cli(*drain) as running:
        running.reports("begun")
        running.signal(signal.SIGTERM)
        running.signal(signal.SIGINT)
        ended = running.ends()

    assert ended.code == 0
    assert claimable() == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_a_drain_whose_setup_hangs_is_stopped_too(place: Path, number: signal.Signals) -> None:
    (place / "slow").touch()
    queue = ["orchestrator", "queue", "drain", "jobs", "--shutdown-timeout", "500ms", *STATE]
    with cli(*queue) as running:
        running.reports("begun")
        running.signal(number)
        ended = running.ends()

    assert (ended.code, ended.err) == SAID[number]


def test_64_serve_tells_the_handler_of_a_job_in_its_wait_and_gives_the_job_back(
    place: Path,
) -> None:
    queue_a_job(place)
    write(place, "sleeps")
    with cli("orchestrator", "serve", "--no-http", "--shutdown-timeout", "1h", *STATE) as running:
        running.reports("begun")
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert (ended.code, last(ended)) == (0, {"status": "stopped", "finished": True})
    assert "failed" not in ended.err
    assert claimable() == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_65_serve_gives_back_the_job_of_a_thread_that_cannot_be_stopped(
    place: Path, number: int
) -> None:
    queue_a_job(place)
    write(place, "thread")
    serve = ["orchestrator", "serve", "--no-http", "--shutdown-timeout", "500ms", *STATE]
    with cli(*serve) as running:
        running.reports("begun")
        running.signal(number)
        ended = running.ends()

    assert (ended.code, last(ended)) == (0, {"status": "stopped", "finished": False})
    assert claimable() == 1


@pytest.mark.parametrize("handler", ["note", "fails"])
def test_a_drain_that_waits_for_more_logs_what_it_does(place: Path, handler: str) -> None:
    queue_a_job(place)
    write(place, handler)
    said = {"note": "succeeded, attempts: 1", "fails": "RuntimeError: boom"}[handler]
    drain = ["orchestrator", "queue", "drain", "jobs", "--shutdown-timeout", "5s", *STATE]
    with cli(*drain, "--wait") as running:
        running.reports("begun")
        running.complains()
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert ended.code == 0 and said in ended.err


def test_a_drain_that_ends_says_only_what_failed(place: Path) -> None:
    queue_a_job(place)
    write(place, "note")
    with cli("orchestrator", "queue", "drain", "jobs", *STATE) as running:
        ended = running.ends()

    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_serve_whose_setup_hangs(place: Path, number: int) -> None:
    (place / "slow").touch()
    with cli("orchestrator", "serve", "--no-http", *STATE) as running:
        running.reports("begun")
        running.signal(number)
        ended = running.ends()

    assert (ended.code, last(ended)) == (0, {"status": "stopped", "finished": True})


def last(ended: Ended) -> Any:
    [line] = [line for line in ended.err.splitlines() if '"stopped"' in line]
    return json.loads(line)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("handler", ["waits", "thread"])
def test_fire_that_waits_is_stopped_with_one_line_and_its_event_stays(
    place: Path, handler: str, number: signal.Signals
) -> None:
    write(place, handler)
    with cli("orchestrator", "fire", "work", *STATE) as running:
        running.reports("begun")
        running.signal(number)
        running.signal(number)
        ended = running.ends()

    assert ended.code == SAID[number][0]
    assert ended.err.endswith(SAID[number][1]) and "Traceback" not in ended.err
    assert invoke(["orchestrator", "inspect", "--json", *STATE]) == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_command_that_asks_a_service_is_stopped_and_the_service_continues(
    place: Path, number: signal.Signals
) -> None:
    write(place, "goes_on")
    with serving(place, "--no-http") as service:
        service.reports("ready")
        with cli("orchestrator", "fire", "work", *STATE) as running:
            until((place / "begun").exists)
            running.signal(number)
            running.signal(number)
            ended = running.ends()
        (place / "go").touch()
        until((place / "done").exists)
        assert service.process.poll() is None

    code, said = SAID[number]
    said = said.replace("\n", "; the service continues what it was asked for\n")
    assert (ended.code, ended.out) == (code, "")
    assert ended.err == f"asking the service of this directory: state/admin.sock\n{said}"


@pytest.mark.parametrize("number", SIGNALS)
def test_following_a_topic_ends_with_one_line(place: Path, number: signal.Signals) -> None:
    queue_a_job(place)
    with cli("log", "tail", "worker.jobs", "--follow", "--after", "0", *STATE) as running:
        assert running.says()
        running.signal(number)
        ended = running.ends()

    assert (ended.code, ended.err) == SAID[number]


DEMO = """
import asyncio, os
from harn.cli import main
from harn.cli.demo import queue_act

async def at_work(consumer):
    os.kill(os.getpid(), NUMBER)
    await asyncio.sleep(3600)

queue_act._until_at_work = at_work
main(["demo"])
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_the_demo_ends_with_one_line_and_leaves_no_files(
    tmp_path: Path, number: signal.Signals
) -> None:
    code = DEMO.replace("NUMBER", str(int(number)))
    with command([sys.executable, "-c", code], env={"TMPDIR": str(tmp_path)}) as running:
        ended = running.ends()

    assert (ended.code, ended.err) == SAID[number]
    assert not list(tmp_path.iterdir())
