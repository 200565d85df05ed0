"""What the in-memory scripts share: do `who` on a loop of its own, print what one costs.

A script is a table of contests, each a table of contestants: a coroutine function of *n*. What it
does not time it does before it calls `began()`. The collector runs before, not during the start.
With *processes* it is done by so many at once, each *n* times, all let go together at `began()`.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time

WHAT = json.loads(sys.argv[1])
_began = 0.0


def began():
    global _began
    gc.collect()
    if WHAT.get("is_one_of_many"):
        print("ready", flush=True)
        sys.stdin.readline()
    _began = time.perf_counter()


def tell(cost):
    """Print the figure and end at once: tearing a million things down is not measured."""
    print(json.dumps({"us": cost}), flush=True)
    os._exit(0)


def rss():
    """Return the resident bytes of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main(contests):
    if WHAT.get("processes", 1) > 1:
        print(json.dumps({"us": _together(WHAT["processes"], WHAT["n"])}), flush=True)
        return
    do, n = contests[WHAT["contest"]][WHAT["who"]], WHAT["n"]
    if WHAT.get("warm"):
        began()
        _run(do, WHAT["warm"])
    if not WHAT.get("is_one_of_many"):
        began()
    told = _run(do, n)
    cost = told if isinstance(told, float) else (time.perf_counter() - _began) / n * 1e6
    print(json.dumps({"us": cost}), flush=True)


def _run(do, n):
    return asyncio.run(do(n)) if asyncio.iscoroutinefunction(do) else do(n)


def _together(processes, n):
    what = json.dumps({**WHAT, "processes": 1, "is_one_of_many": True})
    crowd = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], what], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(processes)
    ]
    for each in crowd:
        assert each.stdout.readline() == b"ready\n", "a process ended"
    start = time.perf_counter()
    for each in crowd:
        each.stdin.write(b"go\n")
        each.stdin.flush()
    for each in crowd:
        each.stdout.readline()
    cost = (time.perf_counter() - start) / (n * processes) * 1e6
    assert all(each.wait() == 0 for each in crowd), "a process failed"
    return cost
