"""What the in-memory scripts share: do `who` on a loop of its own, print what one costs.

A script is a table of contests, each a table of contestants: a coroutine function of *n*. What it
does not time it does before it calls `began()`. The collector runs before, not during the start.
"""

import asyncio
import gc
import json
import sys
import time

WHAT = json.loads(sys.argv[1])
_began = 0.0


def began():
    global _began
    gc.collect()
    _began = time.perf_counter()


def rss():
    """Return the resident bytes of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def main(contests):
    do, n = contests[WHAT["contest"]][WHAT["who"]], WHAT["n"]
    if WHAT.get("warm"):
        began()
        _run(do, WHAT["warm"])
    began()
    told = _run(do, n)
    cost = told if isinstance(told, float) else (time.perf_counter() - _began) / n * 1e6
    print(json.dumps({"us": cost}), flush=True)


def _run(do, n):
    return asyncio.run(do(n)) if asyncio.iscoroutinefunction(do) else do(n)
