"""`serve`, killed again and again between taking an event in and dispatching it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from harn import Runtime, trigger_register
from harn.clock import SystemClock
from harn.testing import FakeClock
from harn.triggers import Triggers, sign

CLIENT = httpx2.Client(trust_env=False, timeout=30)
SECRET = "a signing secret of ours"
MANIFEST = """
[exports]
handlers = "handlers.py"

[[triggers]]
id = "hook"
kind = "webhook"
provider = "github"
path = "/hook"
handler = "handlers::note"
secrets = { signing = "HOOK_SECRET" }
"""
HANDLERS = """
import os, pathlib, signal
from harn.triggers.dispatcher import Dispatcher

HERE = pathlib.Path(__file__).parent
plain_start = Dispatcher.start

def start(self, dispatch):
    # The event is in the store, its sender has no answer yet, no handler has seen it.
    if str(dispatch.event.get("provider_payload.payload.n")) == os.environ["KILL_ON"]:
        os.kill(os.getpid(), signal.SIGKILL)
    plain_start(self, dispatch)

Dispatcher.start = start

async def note(event):
    with open(HERE / "ledger", "a") as file:
        file.write(f"{event.get('provider_payload.payload.n')} {os.getpid()}" + chr(10))
"""


@pytest.mark.timeout(3600)
async def test_S26_killed_between_accept_and_dispatch_nothing_is_lost_or_doubled(
    tmp_path: Path, at_least: Callable[[int], int], nursery: subprocess.Popen[str]
) -> None:
    (tmp_path / "harn.toml").write_text(MANIFEST)
    (tmp_path / "handlers.py").write_text(HANDLERS)
    rounds = at_least(5)
    pids: list[int] = []
    unanswered: list[int] = []
    for number in range(rounds):
        served = Serving(nursery, tmp_path, kill_on=3 * number + 2)
        pids.append(served.pid)
        for n in unanswered:  # as a sender would: it is known by now
            assert served.send(n) == "duplicate"
        assert [served.send(3 * number), served.send(3 * number + 1)] == ["accepted"] * 2
        unanswered = [3 * number + 2]
        assert served.send(unanswered[0]) is None
        assert served.ends() == -signal.SIGKILL

    ran = await what_ran(tmp_path)

    for n in range(3 * rounds):
        runs = ran[n]
        assert runs, f"event {n} was taken in and never dispatched"
        # A second run is promised only where the process of the one before was killed.
        assert len(set(runs)) == len(runs) and set(runs[:-1]) <= set(pids), f"event {n}: {runs}"
    doubled = sum(len(runs) - 1 for runs in ran.values())
    print(f"{rounds} kills, {3 * rounds} events, none lost, {doubled} run again after a kill")


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(Path(__file__).parent / "served_child.py")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process


class Serving:
    """A served manifest in a process of its own, which dies on the event *kill_on*."""

    def __init__(self, nursery: subprocess.Popen[str], place: Path, kill_on: int) -> None:
        said = place / f"said-{kill_on}"
        env = {"HOOK_SECRET": SECRET, "KILL_ON": str(kill_on)}
        asked = json.dumps({"place": str(place), "said": str(said), "env": env})
        assert nursery.stdin is not None and nursery.stdout is not None
        nursery.stdin.write(f"{asked}\n")
        nursery.stdin.flush()
        self._from = nursery.stdout
        self.pid = int(self._from.readline())
        self.url = until(lambda: self._ready(said))

    def _ready(self, said: Path) -> str | None:
        for line in said.read_text().splitlines(keepends=True) if said.exists() else []:
            if '"ready"' in line and line.endswith("\n"):
                return f"http://{json.loads(line)['bind']}/hook"
        return None

    def ends(self) -> int:
        """Wait until the process is gone; return what became of it."""
        return int(self._from.readline())

    def send(self, n: int) -> str | None:
        """Return the answer's status, or None if the process died instead."""
        body = json.dumps({"n": n}).encode()
        headers = sign("github", SECRET.encode(), body, int(time.time()))
        try:
            answer = CLIENT.post(self.url, content=body, headers=headers)
        except httpx2.HTTPError:
            return None
        return str(answer.json()["status"])


def until(condition: Callable[[], str | None]) -> str:
    while (found := condition()) is None:
        time.sleep(0.01)
    return found


async def what_ran(place: Path) -> dict[int, list[int]]:
    """Let a last runtime take over what is left; return each event's runs, by process id."""
    ran: dict[int, list[int]] = defaultdict(list)
    ledger = place / "ledger"
    for line in ledger.read_text().splitlines() if ledger.exists() else []:
        n, pid = line.split()
        ran[int(n)].append(int(pid))

    async def note(event: Any) -> None:
        ran[event.get("provider_payload.payload.n")].append(0)

    clock = FakeClock(start=SystemClock().now_ms() + 60_000)
    async with Runtime(state_dir=place / "state", clock=clock) as runtime:
        await trigger_register(id="hook", kind="webhook", provider="github", match={}, handler=note)
        await clock.advance("1s")
        await runtime.service(Triggers).dispatcher.idle()
    return ran
