"""Commands on a real terminal: what fits, what is coloured, and that long work shows itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import harn
from harn import NewJob, SchedulerPolicy, worker_queue
from harn.cli import invoke
from tests.terminals import COLOURS, Terminal, on_terminal

QUEUE = "review-requests-of-customers"
ERROR = "the provider answered 503: service unavailable, ask again in a while"


async def fill() -> None:
    policy = SchedulerPolicy(strategy="drr", weights={"acme-industries": 3})
    queue = worker_queue(QUEUE, policy)
    tenants = ("acme-industries", "carol-and-sons")
    await queue.enqueue_many([NewJob(n, tenant_id=each) for n in range(3) for each in tenants])
    await queue.enqueue("bad", max_attempts=1, priority="high")
    claim = await queue.claim_next("worker")
    assert claim is not None
    await claim.fail(ERROR)


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("state")
    harn.run(fill, state_dir=place)
    return str(place)


def shown(*argv: str, columns: int, **environ: str) -> Terminal:
    with on_terminal(*argv, columns=columns, environ=environ) as terminal:
        assert terminal.ends() == 0
    return terminal


COMMANDS = [
    ("top --once", [QUEUE, *ERROR.split()]),
    ("orchestrator queue ls", [QUEUE, "carol-and-sons"]),
    (f"orchestrator queue jobs {QUEUE}", ["acme-industries", "carol-and-sons"]),
    (f"orchestrator queue job {QUEUE} 7", ERROR.split()),
    ("orchestrator dlq", ERROR.split()),
]


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=str)
def test_sixty_columns_break_no_word(command: str, expected: list[str], state: str) -> None:
    text = shown(*command.split(), "--state-dir", state, columns=60).text

    words = set(text.split())
    assert "\x1b" not in text
    assert all(len(line) <= 60 or len(line.split()) == 1 for line in text.splitlines())
    for word in expected:
        assert word in words


def test_a_failure_is_red_on_a_terminal_and_plain_with_no_color(state: str) -> None:
    argv = ("orchestrator", "queue", "jobs", QUEUE, "--state-dir", state)

    assert "\x1b[31mdead" in shown(*argv, columns=100).shown
    assert not COLOURS.search(shown(*argv, columns=100, NO_COLOR="1").shown)
    assert "\x1b" not in shown(*argv, columns=100, TERM="dumb").shown


def test_a_pipe_has_no_colours_and_no_folded_lines(state: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harn", "orchestrator", "dlq", "--state-dir", state],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "40"},
    )

    assert "\x1b" not in done.stdout
    assert any(ERROR in line for line in done.stdout.splitlines())


def test_an_error_is_folded_at_words(tmp_path: Path) -> None:
    with on_terminal("orchestrator", "check", "--config", "missing.toml", cwd=tmp_path) as terminal:
        assert terminal.ends() == 1

    assert "\x1b[31merror\x1b[0m: " in terminal.shown
    assert all(len(line) <= 60 for line in terminal.text.splitlines())


def test_a_command_that_takes_long_shows_its_seconds_and_takes_them_away(
    tmp_path: Path, state: str
) -> None:
    assert invoke(["log", "export", str(tmp_path / "log"), "--state-dir", state]) == 0
    reads, writes = os.pipe()
    new = str(tmp_path / "new")
    with on_terminal("log", "import", "-", "--state-dir", new, stdin=reads) as terminal:
        os.close(reads)
        terminal.shows("harn log (")
        os.write(writes, (tmp_path / "log").read_bytes())
        os.close(writes)
        assert terminal.ends() == 0

    assert terminal.text.endswith("records imported, 0 were there already\n")


def test_the_demo_shows_each_of_its_acts_and_keeps_its_promises() -> None:
    with on_terminal("demo", "--json") as terminal:
        assert terminal.ends() == 0

    for text in ("fifo: noisy", "fair_round_robin: noisy", "two workers: ", "takes over: "):
        assert text in terminal.shown
    act = json.loads(terminal.text)["queue"]
    assert (act["lost"], act["acked_twice"], act["acked_once"]) == (0, 0, 160)
    assert act["taken_over"] >= 1
    for share in act["shares"]:
        assert abs(share["promised"] - share["served"]) <= 0.05
