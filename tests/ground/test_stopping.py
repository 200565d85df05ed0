"""Signals to programs that `harn.run` runs, as real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import harn
from harn import InvalidOption
from harn.stopping import Stopping, limits
from tests.signalled import command, program

HEAD = """
import asyncio, os, signal, subprocess, sys, threading, time
import harn

def say(text):
    print(text, flush=True)
"""
ONE_LINE = "SIGTERM: stopping, within {}\n"

WAITS = {
    "a sleep of harn": "await harn.sleep('1h')",
    "a foreign await": "await asyncio.Event().wait()",
    "a child task": "await harn.spawn(harn.sleep, '1h')",
    "a pool": "await (await (await harn.pool_create()).submit(harn.sleep, '1h'))",
    "a thread that looks": "await harn.spawn(looks)",
}
WAITING = (
    HEAD
    + """
def looks():
    while not harn.is_cancelled():
        time.sleep(0.01)

async def main():
    try:
        asyncio.get_running_loop().call_later(0.05, say, "ready")
        {wait}
    finally:
        say("unwound")
        await asyncio.sleep(0)
        say("closed")

harn.run(main)
say("never")
"""
)


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_65_sigterm_cancels_main_closes_all_and_exits_with_143(wait: str) -> None:
    with program(WAITING.format(wait=wait)) as running:
        running.reports("ready")
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert (ended.code, ended.err) == (143, ONE_LINE.format("30s"))
    assert ended.out == "unwound\nclosed\n"


def test_ctrl_c_unwinds_in_the_same_way_and_is_a_keyboard_interrupt() -> None:
    with program(WAITING.format(wait=WAITS["a sleep of harn"])) as running:
        running.reports("ready")
        running.signal(signal.SIGINT)
        ended = running.ends()

    assert ended.code == -signal.SIGINT  # which a shell shows as 130
    assert ended.out == "unwound\nclosed\n"
    assert ended.err.endswith("\nKeyboardInterrupt\n")


STUCK = {
    "a thread of harn": "await harn.spawn(stuck)",
    "a thread of asyncio": "await asyncio.to_thread(stuck)",
    "the event loop": "stuck()",
    "an await that swallows cancels": "await swallows()",
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("stuck", STUCK.values(), ids=STUCK.keys())
def test_65_what_cannot_be_stopped_does_not_hold_the_process(stuck: str, number: int) -> None:
    code = f"""{HEAD}
def stuck():
    sys.stdout.write("half ")  # a line that is still in the buffer
    say("ready")
    sys.stdout.write("kept")
    time.sleep(3600)

async def swallows():
    sys.stdout.write("half ")
    say("ready")
    sys.stdout.write("kept")
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    {stuck}

try:
    harn.run(main, shutdown_timeout="500ms")
except KeyboardInterrupt:
    sys.exit(130)
"""
    with program(code) as running:
        running.reports("half ready")
        running.signal(number)
        ended = running.ends()

    assert (ended.code, ended.out) == (128 + number, "kept")
    assert "Traceback" not in ended.err
    said = ended.err.splitlines()
    assert said[-1].endswith(("still runs it", "the process exits now"))


def test_a_second_signal_hurries() -> None:
    code = f"""{HEAD}
def stuck():
    say("ready")
    time.sleep(3600)

async def main():
    try:
        await harn.spawn(stuck)
    finally:
        say("released")

harn.run(main, shutdown_timeout="1h")
"""
    with program(code) as running:
        running.reports("ready")
        running.signal(signal.SIGTERM)
        running.complains()
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert (ended.code, ended.out) == (143, "released\n")
    first, second = ended.err.splitlines()
    assert first + "\n" == ONE_LINE.format("1h")
    assert "is abandoned" in second


def test_a_plain_main_that_looks_is_stopped_too() -> None:
    code = f"""{HEAD}
def main():
    say("ready")
    while not harn.is_cancelled():
        time.sleep(0.01)
    say("ended")

harn.run(main)
"""
    with program(code) as running:
        running.reports("ready")
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert (ended.code, ended.out, ended.err) == (143, "ended\n", ONE_LINE.format("30s"))


def test_a_signal_while_the_runtime_closes_lets_it_close() -> None:
    code = f"""{HEAD}
async def cleanup():
    say("closing")
    await asyncio.sleep(0.3)
    say("closed")

async def main():
    harn.defer(cleanup)

harn.run(main)
say("never")
"""
    with program(code) as running:
        running.reports("closing")
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert (ended.code, ended.out) == (143, "closed\n")


def test_a_main_that_handles_its_cancel_still_ends_with_143() -> None:
    code = f"""{HEAD}
async def main():
    say("ready")
    try:
        await harn.sleep("1h")
    except asyncio.CancelledError:
        return "handled"

harn.run(main)
say("never")
"""
    with program(code) as running:
        running.reports("ready")
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert (ended.code, ended.out) == (143, "")


def test_an_error_on_the_way_out_is_seen() -> None:
    code = f"""{HEAD}
async def main():
    try:
        say("ready")
        await harn.sleep("1h")
    finally:
        raise RuntimeError("the cleanup broke")

harn.run(main)
"""
    with program(code) as running:
        running.reports("ready")
        running.signal(signal.SIGTERM)
        ended = running.ends()

    assert ended.code == 1
    assert ended.err.endswith("RuntimeError: the cleanup broke\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_at_any_moment_end_it_in_order(number: int, tmp_path: Path) -> None:
    """From the first import to the last cleanup, with a store that must stay whole."""
    code = f"""{HEAD}
async def main():
    queue = harn.worker_queue("q")
    while True:
        await queue.enqueue(1)
        await harn.spawn(lambda: None)

try:
    harn.run(main, state_dir=sys.argv[1])
except KeyboardInterrupt:
    sys.exit(130)
"""
    before_run = {-number, 1}  # killed by Python's own handling, while it imports
    for moment in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        with process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=moment * 0.06)
            process.send_signal(number)
            _, said = process.communicate(timeout=60)
        assert process.returncode in {128 + number} | before_run, said

    async def look() -> int:
        return (await harn.worker_queue("q").summary()).ready

    assert harn.run(look, state_dir=tmp_path) >= 0


IN_A_PROCESS = f"""{HEAD}
def work():
    say("ready")
    time.sleep(3600)

async def main():
    try:
        await harn.spawn(work, isolation="process")
    except BaseException as error:
        say(type(error).__name__)
        raise

if __name__ == "__main__":
    os.setsid()
    harn.run(main)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_stops_worker_processes_through_their_parent(
    number: int, tmp_path: Path
) -> None:
    """A service manager and a terminal signal every process: the work is cancelled, not failed."""
    (tmp_path / "script.py").write_text(IN_A_PROCESS)
    with command([sys.executable, str(tmp_path / "script.py")]) as running:
        running.reports("ready")
        os.killpg(running.process.pid, number)
        ended = running.ends()

    assert ended.code == (143 if number == signal.SIGTERM else -number)
    assert ended.out == "CancelledError\n"


def test_worker_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(IN_A_PROCESS)
    with command([sys.executable, str(tmp_path / "script.py")]) as running:
        running.reports("ready")
        running.signal(signal.SIGKILL)

        assert running.ends().out == ""  # the pipe is closed: no process has it any more


BUSY = f"""{HEAD}
import pickle
from harn.tasks.processes import WorkerProcess

class Sleeps:
    def __reduce__(self):
        return exec, ("print('busy', flush=True); import time; time.sleep(3600)",)

def ask(worker):
    try:
        worker.ask(pickle.dumps(Sleeps()))
    except BaseException:  # not printed: Python aborts if a thread prints while it exits
        pass

if __name__ == "__main__":
    threading.Thread(target=ask, args=[WorkerProcess()], daemon=True).start()
    sys.stdin.readline()
"""


def test_a_worker_process_that_is_busy_does_not_hold_the_exit_of_python(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BUSY)
    with command([sys.executable, str(tmp_path / "script.py")]) as running:
        running.reports("busy")
        assert running.process.stdin is not None
        running.process.stdin.close()

        assert running.ends().code == 0


def test_off_the_main_thread_it_runs_without_signals() -> None:
    found: list[str] = []

    async def main() -> str:
        return "ran"

    thread = threading.Thread(target=lambda: found.append(harn.run(main)))
    thread.start()
    thread.join()

    assert found == ["ran"]


def test_handlers_of_the_program_are_left_alone_and_ours_go_away() -> None:
    def own(number: int, frame: object) -> None: ...

    async def main() -> list[object]:
        return [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]

    before = signal.signal(signal.SIGTERM, own)
    try:
        terminate, interrupt = harn.run(main)
        after = signal.getsignal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert (terminate, after) == (own, own)
    assert interrupt is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("wrong", [-1, "soon", True, None])
def test_a_shutdown_timeout_that_makes_no_sense_is_refused(wrong: object) -> None:
    async def main() -> None: ...

    with pytest.raises(InvalidOption, match="shutdown_timeout"):
        harn.run(main, shutdown_timeout=wrong)  # type: ignore[call-overload,call-arg]


@pytest.mark.parametrize("timeout", [0.0, 0.1, 1.0, 5.0, 30.0, 3600.0])
def test_the_last_moment_comes_after_giving_up_and_leaves_time_to_close(timeout: float) -> None:
    gives_up, last = limits(timeout, 100.0)

    assert 100.0 <= gives_up <= 100.0 + timeout
    assert last - gives_up >= 0.5
    assert last <= max(100.0 + timeout, 100.5 + timeout)


def test_a_signal_before_the_loop_runs_is_heard_when_it_does() -> None:
    stopping = Stopping(30.0)

    async def main() -> None:
        await asyncio.Event().wait()

    def inside() -> object:
        os.kill(os.getpid(), signal.SIGTERM)
        return main()

    with pytest.raises(SystemExit) as stopped:
        stopping.run(inside)  # type: ignore[arg-type]

    assert stopped.value.code == 143


def test_65_a_signal_that_another_thread_takes_wakes_an_idle_loop() -> None:
    code = f"""{HEAD}

def strike():
    time.sleep(0.2)  # until the loop waits; a stop before that would be seen anyway
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    time.sleep(3600)

async def main():
    threading.Thread(target=strike, daemon=True).start()
    say("ready")
    await asyncio.Event().wait()

harn.run(main, shutdown_timeout="5s")
"""
    with program(code) as running:
        running.reports("ready")
        assert running.ends().code == 143
