"""What the queue scripts share: one protocol, so that every contestant is timed the same way.

A script says how its library makes its tables (`make`), puts one job in (`putter`), fills a queue
quickly (`filler`, not timed) and runs a worker forever (`work`). It is started with one JSON
argument and prints one JSON line, `{"us": ...}`.

- *enqueue*: *n* jobs one at a time on an open connection, each durable when its call returns.
- *enqueue many*: *n* jobs by hundreds, each hundred durable when its call returns.
- *drain*: *n* jobs wait; *workers* processes are started. The first jobs that each of them takes
  are held at a gate until all processes are there. What they may have claimed by then does not
  count: the clock runs from the end of job 2 x *concurrency* x *workers* to the end of the last.
  A script that can say when its jobs were acknowledged (`acked`) is timed by that instead, from
  one such number of jobs after the first to one before the last: a handler that has ended counts
  once the database has it, and a worker that waits for a timer with its last few is not punished.
- *life*: a drain, and before it the enqueueing by hundreds (in one call where there is one), which
  is timed too; the sum.
- *idle*: a worker is idle; the median, from the call that enqueues a job to its handler. Then, for
  a while without a job, the processor time of the worker's process, in percent of one core.

The handler appends a line to a file: that is how the end is seen from outside, for all alike.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

WHAT = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
HOME = Path(WHAT.get("home", "."))
AT = WHAT.get("at") or str(HOME / "queue.sqlite")
CONCURRENCY = WHAT.get("concurrency", 10)
IDLE_SAMPLES = 5
IDLE_SECONDS = 0.8

_marks = -1
_is_open = False


def did(value: object) -> None:
    """Be the handler, in a thread or a process."""
    _ready()
    while not _gate_is_open():
        time.sleep(0.005)
    _mark(value)


async def did_async(value: object) -> None:
    """Be the handler, on an event loop."""
    _ready()
    while not _gate_is_open():
        await asyncio.sleep(0.005)
    _mark(value)


def _ready() -> None:
    global _marks
    if _marks < 0:
        _marks = os.open(HOME / "marks", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        (HOME / f"here-{os.getpid()}").touch()


def _gate_is_open() -> bool:
    global _is_open
    _is_open = _is_open or (HOME / "gate").exists()
    return _is_open


def _mark(value: object) -> None:
    os.write(_marks, f"{value} {time.monotonic_ns()}\n".encode())


def main(make, putter, work, filler=None, acked=None) -> None:
    """Do what the argument asks for.

    *acked* returns the times at which jobs were acknowledged, in ns, or None if that is not known.
    """
    operation = WHAT["operation"]
    if operation == "work":
        work(AT, CONCURRENCY)
        return
    make(AT)
    n = WHAT.get("n", 0)
    if operation == "enqueue":
        put = putter(AT)
        put(0)
        told = {"us": _timed(lambda: [put(value) for value in range(n)], n)}
    elif operation == "enqueue many":
        told = {"us": _filled(n, putter, filler)}
    elif operation == "drain":
        _filled(n, putter, filler)
        told = {"us": _drained(n, acked)}
    elif operation == "life":
        told = {"us": _filled(n, putter, filler) + _drained(n, acked)}
    elif operation == "idle":
        told = _idle(putter)
    else:
        raise ValueError(operation)
    print(json.dumps(told), flush=True)
    os._exit(0)


def _timed(do, n: int) -> float:
    began = time.perf_counter()
    do()
    return (time.perf_counter() - began) / n * 1e6


def _filled(n: int, putter, filler) -> float:
    """Enqueue *n* by hundreds; return what one cost."""
    if filler is None:
        put = putter(AT)
        return _timed(lambda: [put(value) for value in range(n)], n)
    fill = filler(AT)
    hundreds = [list(range(first, min(n, first + 100))) for first in range(0, n, 100)]
    fill(hundreds[0])
    return _timed(lambda: [fill(values) for values in hundreds[1:]], max(1, n - 100))


def _drained(n: int, acked) -> float:
    wanted = WHAT.get("workers", 1)
    workers = [_worker() for _ in range(wanted)]
    _until(lambda: len(list(HOME.glob("here-*"))) >= wanted, workers)
    (HOME / "gate").touch()
    _until(lambda: len(_lines()) >= n, workers)
    acks = None if acked is None else acked(AT)
    while acks is not None and len(acks) < n:
        time.sleep(0.02)
        acks = acked(AT)
    lines = _lines()
    for worker in workers:
        worker.kill()
    seen = {line.split()[0] for line in lines}
    assert len(seen) == n, f"{n - len(seen)} of {n} jobs were not done"
    ends = sorted(int(line.split()[1]) for line in lines)
    held = 2 * CONCURRENCY * wanted
    assert n >= (2 if acks is None else 3) * held, (
        f"{n} jobs are too few for {held} that may be held"
    )
    if acks is not None:
        return (sorted(acks)[n - held - 1] - sorted(acks)[held - 1]) / (n - 2 * held) / 1000
    return (ends[-1] - ends[held - 1]) / (len(ends) - held) / 1000


def _idle(putter) -> dict[str, float]:
    (HOME / "gate").touch()
    put = putter(AT)
    worker = _worker()
    put(-1)
    _until(lambda: len(_lines()) >= 1, [worker])
    waits = []
    for number in range(WHAT.get("samples", IDLE_SAMPLES)):
        time.sleep(random.uniform(0.05, 0.2))
        began = time.monotonic_ns()
        put(number)
        _until(lambda: len(_lines()) >= len(waits) + 2, [worker])
        waits.append((int(_lines()[-1].split()[1]) - began) / 1000)
    time.sleep(0.1)
    began, before = time.monotonic_ns(), _processor_ns(worker)
    time.sleep(IDLE_SECONDS)
    used, passed = _processor_ns(worker) - before, time.monotonic_ns() - began
    worker.kill()
    return {"us": statistics.median(waits), "percent": 100 * used / passed}


def _processor_ns(worker) -> int:
    """Return the processor time of the process so far, all its threads together."""
    threads = Path(f"/proc/{worker.pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads)


def _worker() -> subprocess.Popen:
    what = json.dumps({**WHAT, "operation": "work", "at": AT})
    return subprocess.Popen([sys.executable, sys.argv[0], what], stdout=subprocess.DEVNULL)


def _lines() -> list[str]:
    try:
        text = (HOME / "marks").read_text()
    except FileNotFoundError:
        return []
    return text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]


def _until(condition, workers) -> None:
    while not condition():
        for worker in workers:
            assert worker.poll() is None, "a worker ended"
        time.sleep(0.005)


class Loop:
    """Call coroutines from plain code, on one loop that stays."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)

    def __call__(self, awaitable):
        return self.loop.run_until_complete(awaitable)
