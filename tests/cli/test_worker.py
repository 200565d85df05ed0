"""`harn worker` as real processes: jobs done, processes killed and stopped, modules that fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harn
from harn import EnqueueReceipt, JobState, worker_queue
from harn.cli import invoke
from tests.orchestrator.processes import ledger, until
from tests.signalled import Program, command
from tests.terminals import on_terminal

APP = """
import asyncio, os, pathlib
import harn

HERE = pathlib.Path(__file__).parent

def note(line):
    with open(HERE / "ledger", "a") as file:
        file.write(line + chr(10))

@harn.durable(name="worker-test:double")
def double(n):
    return n * 2

@harn.durable(name="worker-test:wait")
async def wait():
    note(str(os.getpid()))
    while not (HERE / "go").exists():
        await asyncio.sleep(0.02)
    return os.getpid()

@harn.durable(name="worker-test:nap")
async def nap():
    note(str(os.getpid()))
    await harn.sleep("1h")
"""
QUICK_LEASES = {"HARN_LEASE_MS": "2000", "HARN_LEASE_RENEW_MS": "500"}


@harn.durable(name="worker-test:double")
def double(n: int) -> int:
    raise NotImplementedError("this process only submits it")


@harn.durable(name="worker-test:wait")
async def wait() -> int:
    raise NotImplementedError("this process only submits it")


@harn.durable(name="worker-test:nap")
async def nap() -> None:
    raise NotImplementedError("this process only submits it")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@contextlib.contextmanager
def working(place: Path, *argv: str) -> Iterator[Program]:
    words = [sys.executable, "-m", "harn", "worker", "app", "--queue", "q", *argv]
    with command([*words, "--state-dir", "state", "--json"], place, QUICK_LEASES) as program:
        yield program


def says(program: Program, status: str) -> dict[str, Any]:
    """Return the next status line that says *status*."""
    while line := program.says():
        record: dict[str, Any] = json.loads(line)
        if record["status"] == status:
            return record
    raise AssertionError(f"it never said {status}: {program.ends()}")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def submit(place: Path, queue: str, fn: Any, *args: Any) -> None:
    async def main() -> None:
        await worker_queue(queue).submit(fn, *args)

    harn.run(main, state_dir=place / "state")


def result(place: Path, queue: str, job: int) -> Any:
    async def main() -> Any:
        receipt: EnqueueReceipt[Any] = EnqueueReceipt(queue, job, "", "full", False)
        return await receipt.result(timeout="30s")

    return harn.run(main, state_dir=place / "state")


def state(place: Path, queue: str, job: int) -> JobState:
    async def main() -> JobState:
        found = await worker_queue(queue).job(job)
        assert found is not None
        return found

    seen: JobState = harn.run(main, state_dir=place / "state")
    return seen


def test_a_worker_serves_two_queues_for_another_process(place: Path) -> None:
    with working(place, "--queue", "r") as worker:
        started = says(worker, "started")
        submit(place, "q", double, 21)
        submit(place, "r", double, 4)

        assert (result(place, "q", 1), result(place, "r", 1)) == (42, 8)

        worker.signal(signal.SIGTERM)
        stopped = says(worker, "stopped")
        ended = worker.ends()
    assert (started["pid"], list(started["queues"])) == (worker.process.pid, ["q", "r"])
    assert [each["acked"] for each in stopped["queues"].values()] == [1, 1]
    assert (ended.code, ended.out) == (0, "")
    assert all(" INFO " in line for line in ended.err.splitlines())


def test_a_killed_child_is_replaced_and_others_do_its_jobs(place: Path) -> None:
    with working(place, "--processes", "2", "--concurrency", "1") as worker:
        pids = {says(worker, "started")["pid"], says(worker, "started")["pid"]}
        submit(place, "q", wait)
        [killed] = until(lambda: ledger(place))

        os.kill(int(killed), signal.SIGKILL)

        replaced = says(worker, "started")["pid"]
        other = until(lambda: ledger(place)[1:])[0]
        (place / "go").touch()
        assert result(place, "q", 1) == int(other) != int(killed)
        assert int(killed) in pids and replaced not in pids
        worker.signal(signal.SIGTERM)
        assert worker.ends().code == 0
    until(lambda: not any(map(is_alive, {*pids, replaced})))


def test_children_end_when_the_command_is_killed(place: Path) -> None:
    with working(place, "--processes", "2") as worker:
        pids = [says(worker, "started")["pid"] for _ in range(2)]
        submit(place, "q", nap)
        until(lambda: ledger(place))

        worker.signal(signal.SIGKILL)

        until(lambda: not any(map(is_alive, pids)))
    assert state(place, "q", 1).status == "ready"


@pytest.mark.parametrize("processes", ["1", "2"])
def test_sigterm_lets_a_job_finish_and_exits_with_0(place: Path, processes: str) -> None:
    with working(place, "--processes", processes) as worker:
        for _ in range(int(processes)):
            says(worker, "started")
        submit(place, "q", wait)
        [busy] = map(int, until(lambda: ledger(place)))

        worker.signal(signal.SIGTERM)
        while says(worker, "stopping")["pid"] != busy:
            pass
        if busy != worker.process.pid:
            # A service manager signals every process: for a child that is no second signal.
            os.kill(busy, signal.SIGTERM)
        (place / "go").touch()
        ended = worker.ends()

    assert ended.code == 0
    assert state(place, "q", 1).outcome == busy


def test_what_a_module_has_in_a_buffer_is_written_when_the_worker_ends(place: Path) -> None:
    lazy = """
class Notes:
    def __init__(self):
        self.itself = self
        self.file = open(HERE / "notes", "w")

notes = Notes()
notes.file.write("imported")
"""
    (place / "app.py").write_text(APP + lazy)
    with working(place) as worker:
        says(worker, "started")
        worker.signal(signal.SIGTERM)
        assert worker.ends().code == 0

    assert (place / "notes").read_text() == "imported"


def test_a_job_that_waits_in_harn_is_released_at_sigterm(place: Path) -> None:
    with working(place) as worker:
        says(worker, "started")
        submit(place, "q", nap)
        until(lambda: ledger(place))

        worker.signal(signal.SIGTERM)
        stopped = says(worker, "stopped")

        assert worker.ends().code == 0
    assert stopped["queues"]["q"]["released"] == 1
    found = state(place, "q", 1)
    assert (found.status, found.attempts) == ("ready", 0)


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_second_signal_releases_the_jobs_at_once(place: Path, processes: str) -> None:
    with working(place, "--processes", processes, "--shutdown-timeout", "1h") as worker:
        for _ in range(int(processes)):
            says(worker, "started")
        submit(place, "q", wait)
        until(lambda: ledger(place))

        worker.signal(signal.SIGTERM)
        says(worker, "stopping")
        worker.signal(signal.SIGTERM)

        assert worker.ends().code == 0
    assert state(place, "q", 1).status == "ready"


BASE = """
class Skipped(BaseException):
    def __str__(self):
        return self.args[0]

"""


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("module", "text", "said"),
    [
        ("absent", None, "module 'absent' cannot be imported: there is no module 'absent' here"),
        ("broken", "import no_such_thing", "No module named 'no_such_thing' ("),
        ("wrong", "def f(:", "module 'wrong' cannot be imported: SyntaxError: "),
        ("leaves", "raise SystemExit(0)", "module 'leaves' cannot be imported: SystemExit: 0 ("),
        ("skips", f"{BASE}raise Skipped('not here')", "cannot be imported: Skipped: not here ("),
        (
            "mute",
            f"{BASE}raise Skipped",
            "'mute' cannot be imported: Skipped: (its message cannot be shown) (",
        ),
        ("stops", "raise KeyboardInterrupt", "cannot be imported: KeyboardInterrupt ("),
        ("app.py", None, "'app.py' is a file: name the module, such as app.jobs"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    place: Path, processes: str, module: str, text: str | None, said: str
) -> None:
    if text is not None:
        (place / f"{module}.py").write_text(text)
    words = [sys.executable, "-m", "harn", "worker", module, "--queue", "q"]

    with command([*words, "--processes", processes, "--state-dir", "state"], place) as worker:
        ended = worker.ends()

    assert (ended.code, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert said in ended.err
    assert not (place / "state").exists()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_that_is_stopped_while_it_imports_does_not_blame_the_module(
    place: Path, processes: str
) -> None:
    (place / "slow.py").write_text("from signal import *\nraise_signal(SIGTERM)")
    words = [sys.executable, "-m", "harn", "worker", "slow", "--queue", "q"]

    with command([*words, "--processes", processes, "--state-dir", "state"], place) as worker:
        ended = worker.ends()

    assert "cannot be imported" not in ended.err
    assert ended.code != 0


def test_modules_without_a_durable_function_are_a_warning(place: Path) -> None:
    (place / "plain.py").write_text("")
    words = [sys.executable, "-m", "harn", "worker", "plain", "--queue", "q", "--json"]

    with command([*words, "--state-dir", "state"], place) as worker:
        says(worker, "started")
        worker.signal(signal.SIGINT)
        ended = worker.ends()

    assert ended.code == 0
    assert "no @durable function is registered by plain" in ended.err


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["app"], 2),
        (["--queue", "q"], 2),
        (["app", "--queue", "q", "--concurrency", "0"], 2),
        (["app", "--queue", " q"], 1),
    ],
)
def test_wrong_usage_is_one_line(argv: list[str], code: int, capsys: Any) -> None:
    assert invoke(["worker", *argv]) == code

    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("processes", "before"), [("1", ""), ("2", "2 processes: ")])
def test_a_terminal_sees_the_counts(place: Path, processes: str, before: str) -> None:
    argv = ("worker", "app", "--queue", "q", "--state-dir", "state", "--processes", processes)
    with on_terminal(*argv, columns=100, cwd=place, environ=QUICK_LEASES) as terminal:
        until(lambda: terminal.shown.count(" started: q") == int(processes))
        submit(place, "q", double, 21)

        terminal.shows(f"\r{before}0 in flight, 1 acked, 0 deferred, 0 released\x1b[K\r")

        os.kill(terminal.process.pid, signal.SIGTERM)
        assert terminal.ends() == 0
    # The log is on lines of its own, above the line that comes and goes.
    assert all(" INFO " in line for line in terminal.text.splitlines())


LATE = """
import pathlib, time
here = pathlib.Path(__file__).parent
try:
    (here / "first").touch(exist_ok=False)
except FileExistsError:
    (here / "second").touch()
    time.sleep(3600)
"""


def test_a_child_that_still_imports_is_stopped_in_order(place: Path) -> None:
    (place / "app.py").write_text(LATE)
    with working(place, "--processes", "2") as worker:
        until((place / "second").exists)

        worker.signal(signal.SIGTERM)

        assert worker.ends().code == 0
