"""Replays can be verified, and a replay after a crash takes over what the crash interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harn.cli import invoke
from tests.orchestrator.processes import ledger, serving, until

HANDLERS = """
import asyncio, importlib, os, pathlib, sys
import harn
from harn.triggers.dispatcher import Dispatcher

importlib.import_module("harn.storage.triggers.owners").OWNER_MS = 2_000
HERE = pathlib.Path(__file__).parent

def write(line):
    with open(HERE / "ledger", "a") as file:
        file.write(line + chr(10))

async def setup():
    await harn.pool_create(name="work", scope="pipeline", max_concurrent=2)
    await harn.pool_create(name="other", max_concurrent=2)

def work(event):
    async def run():
        write("ran")
    return run

async def slow(event):
    if (HERE / "die").exists():
        write("choosing")
        await asyncio.Event().wait()
    return work(event)

settle = Dispatcher._settle

async def die(self, dispatch, outcome):
    if not (HERE / "die").exists():
        return await settle(self, dispatch, outcome)
    while (HERE / "ledger").read_text().split().count("ran") < 2:
        await asyncio.sleep(0.01)
    os.kill(os.getpid(), 9)

Dispatcher._settle = die
"""
MANIFEST = """
[exports]
handlers = "handlers.py"
[orchestrator]
setup = "handlers::setup"
pipeline = "nightly"
[serve]
queues = []
[[triggers]]
id = "t"
kind = "channel.emit"
provider = "channel"
match = { events = ["channel:t"] }
handler = { pool = "work", task_factory = "handlers::work", key_from = "provider_payload.payload.k", priority_from = "provider_payload.payload.p" }
"""  # noqa: E501

Run = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "harn.toml").write_text(MANIFEST)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    return tmp_path


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Run:
    monkeypatch.chdir(place)

    def run(*argv: str) -> tuple[int, Any, str]:
        capsys.readouterr()
        code = invoke(["orchestrator", *argv, "--state-dir", "state"])
        shown = capsys.readouterr()
        return code, json.loads(shown.out) if "--json" in argv else shown.out, shown.err

    return run


def fired(run: Run) -> str:
    code, document, _ = run("fire", "t", "--payload", '{"k": "acme", "p": 3}', "--json")
    assert code == 0
    return str(document["event_id"])


def test_a_replay_tells_that_the_event_mapped_as_before(run: Run) -> None:
    event = fired(run)

    code, document, _ = run("replay", event, "--json")
    [handle] = document["handles"]
    mapping = handle["mapping"]
    assert (code, mapping["same"], mapping["differs"]) == (0, True, [])
    place = {"pool": "work", "key": "acme", "priority": 3}
    assert mapping["now"] == {"task": handle["result"]["id"], **place}
    assert mapping["before"] == {"task": mapping["before"]["task"], **place}
    assert mapping["before"]["task"] != mapping["now"]["task"]

    code, text, _ = run("replay", event)
    assert code == 0
    assert "mapping: as before: pool work, key acme, priority 3 (task " in text


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ('pool = "work"', 'pool = "other"', ["pool"]),
        ("payload.k", "payload.p", ["key"]),
        (', priority_from = "provider_payload.payload.p"', "", ["priority"]),
    ],
)
def test_a_replay_tells_in_what_the_mapping_differs(
    run: Run, place: Path, old: str, new: str, differs: list[str]
) -> None:
    event = fired(run)
    (place / "harn.toml").write_text(MANIFEST.replace(old, new))

    code, document, _ = run("replay", event, "--json")
    assert (code, document["handles"][0]["mapping"]["differs"]) == (0, differs)
    assert document["handles"][0]["mapping"]["same"] is False


def test_a_dead_letter_that_never_reached_a_pool_has_nothing_to_compare_with(
    run: Run, place: Path
) -> None:
    (place / "harn.toml").write_text(MANIFEST.replace('pool = "work"', 'pool = "none"'))
    letter = run("fire", "t", "--json")[1]["dlq_entry_id"]
    (place / "harn.toml").write_text(MANIFEST)

    code, document, _ = run("dlq", "--replay", letter, "--json")
    mapping = document["handles"][0]["mapping"]
    assert (code, mapping["same"], mapping["before"]) == (0, None, None)


@pytest.mark.parametrize("when", ["before the pool", "after the work"])
def test_a_replay_after_a_kill_takes_over_and_runs_once(place: Path, run: Run, when: str) -> None:
    if when == "before the pool":
        (place / "harn.toml").write_text(MANIFEST.replace("handlers::work", "handlers::slow"))
    event = fired(run)
    (place / "die").write_text("")
    with serving(place) as service:
        service.reports("ready")
        command = [sys.executable, "-m", "harn", "orchestrator", "replay", event]
        client = subprocess.Popen([*command, "--state-dir", "state"], cwd=place)
        if when == "before the pool":
            until(lambda: "choosing" in ledger(place))
            service.signal(signal.SIGKILL)
        assert service.ends() == -signal.SIGKILL
        assert client.wait(timeout=30) == 1
    (place / "die").unlink()

    # The killed process is believed to live for a while: the command waits for that.
    code, document, _ = run("replay", event, "--json")

    [handle] = document["handles"]
    assert (code, handle["status"], handle["mapping"]["same"]) == (0, "dispatched", True)
    assert ledger(place).count("ran") == 2  # once when it was fired, once by the replay
    assert run("inspect", "--json")[1]["pending"]["count"] == 0
