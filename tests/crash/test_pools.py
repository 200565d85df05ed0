"""A pipeline pool whose process is really killed, again and again, in the middle of its submits."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from harn import Retention, Runtime, pool_create

SCRIPT = Path(__file__).parent / "pool_submitter.py"
RACER = Path(__file__).parent / "pool_racer.py"
SUBMITS = 1000


def started(state_dir: Path, ledger: Path, first: int, count: int) -> subprocess.Popen[str]:
    args = [sys.executable, str(SCRIPT), str(state_dir), str(ledger), str(first), str(count)]
    return subprocess.Popen(args, stderr=subprocess.PIPE, text=True)


def lines(ledger: Path) -> list[list[str]]:
    return [line.split() for line in ledger.read_text().splitlines()] if ledger.exists() else []


def killed_after(child: subprocess.Popen[str], ledger: Path, acks: int) -> None:
    """Kill *child* once the ledger holds *acks* lines (or it has ended)."""
    pause = threading.Event()
    while child.poll() is None and len(lines(ledger)) < acks:
        pause.wait(0.002)
    child.send_signal(signal.SIGKILL)
    child.communicate()


async def check(tmp_path: Path, kills: int, seed: int) -> None:
    rng, ledger, first = random.Random(seed), tmp_path / "ledger", 0
    for _ in range(kills):
        child = started(tmp_path, ledger, first, SUBMITS)
        killed_after(child, ledger, len(lines(ledger)) + rng.randrange(1, 600))
        first += SUBMITS
    last = started(tmp_path, ledger, first, 0)
    _, errors = last.communicate(timeout=60)
    assert last.returncode == 0, errors

    acked = {word[1]: word[2] for word in lines(ledger) if word[0] == "ack"}
    ran = Counter(word[1] for word in lines(ledger) if word[0] == "ran")
    async with Runtime(state_dir=tmp_path, storage="memory://"):
        pool = await pool_create(
            name="crash", scope="pipeline", pipeline_id="p", retention=Retention(count=10**6)
        )
        found = {task.id: task for task in pool.snapshot().tasks}
        assert acked, "killed before anything was acknowledged: nothing was tested"
        assert set(acked.values()) <= set(found), "an acknowledged submit is lost"
        assert ran.most_common(1)[0][1] == 1, "a call that may run once ran twice"
        for number, id in acked.items():
            outcome = (found[id].status, found[id].stale_reason)
            assert outcome in (("completed", None), ("failed", "interrupted")), outcome
            if outcome[0] == "completed":
                assert found[id].result == int(number)
                assert ran[number] == 1
        interrupted = [task for task in found.values() if task.stale_reason == "interrupted"]
        assert len(interrupted) <= 4 * kills, "more were interrupted than could have been running"


async def test_nothing_acknowledged_is_lost_and_nothing_runs_twice(tmp_path: Path) -> None:
    await check(tmp_path, kills=10, seed=1)


@pytest.mark.stress
@pytest.mark.timeout(3600)
async def test_nothing_is_lost_over_many_kills(
    tmp_path: Path, at_least: Callable[[int], int]
) -> None:
    for seed in range(at_least(1)):
        place = tmp_path / str(seed)
        place.mkdir()
        await check(place, kills=50, seed=seed)


def racers(state_dir: Path, number: int) -> list[subprocess.Popen[str]]:
    args = [sys.executable, str(RACER), str(state_dir)]
    return [
        subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for _ in range(number)
    ]


def say(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdin
    child.stdin.write(text)


def answer_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout
    return child.stdout.readline().strip()


async def race(state_dir: Path, rounds: int) -> None:
    children = racers(state_dir, 3)
    try:
        assert [answer_of(child) for child in children] == ["ready"] * 3
        for number in range(rounds):
            for child in children:
                say(child, f"go {number}\n")
            answers = [answer_of(child) for child in children]
            assert sorted(answers) == ["locked", "locked", "won"], (number, answers)
            winner = children[answers.index("won")]
            say(winner, "release\n")
            assert answer_of(winner) == "released"
    finally:
        for child in children:
            child.communicate(timeout=30)
    async with Runtime(state_dir=state_dir, storage="memory://"):
        pool = await pool_create(name="race", scope="pipeline", pipeline_id="p")
        assert [task.result for task in pool.snapshot().tasks] == list(range(rounds))


async def test_J6_of_processes_that_race_for_a_journal_one_wins(tmp_path: Path) -> None:
    await race(tmp_path, rounds=10)


@pytest.mark.stress
@pytest.mark.timeout(600)
async def test_J6_of_processes_that_race_many_times_one_wins(
    tmp_path: Path, at_least: Callable[[int], int]
) -> None:
    await race(tmp_path, rounds=at_least(100))
