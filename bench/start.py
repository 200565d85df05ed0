"""Starting: how long a command takes from its start to its answer, and what it loads.

Each round is a new process, as a shell starts it. *Python* does nothing; *the libraries* imports
what every command on a store needs (asyncio, click, apsw, msgspec) and does nothing with it: the
floor of a command. `queue ls` lists two queues of a SQLite store, `fire` fires a trigger of a
manifest whose handler returns at once, without a service, so it opens the store, registers, writes
the event and its outcome, and closes. Modules are those in `sys.modules` at the end, which is what
a start costs most of all; `python -X importtime -m harn ...` tells the time of each.
"""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from bench.growth import home
from bench.harness import Contest, Contestant, Goal, budget
from harn import Runtime, worker_queue

SUBJECT = "start: from a command to its answer"

TIME = "start to answer"
LOADED = "modules loaded"
LIBRARIES = "import asyncio, click, apsw, msgspec"
MANIFEST = """
[exports]
handlers = "handlers.py"

[[triggers]]
id = "ping"
kind = "webhook"
provider = "webhook"
handler = "handlers::on_ping"
"""
HANDLERS = "def on_ping(event):\n    return 1\n"
BUDGET_MS = 120.0


@functools.cache
def place() -> Path:
    """Make a directory with a manifest, its handlers and a store with two queues."""
    folder = home()
    (folder / "harn.toml").write_text(MANIFEST, encoding="utf-8")
    (folder / "handlers.py").write_text(HANDLERS, encoding="utf-8")

    async def fill() -> None:
        async with Runtime(state_dir=folder / "state"):
            for name in ("reviews", "mail"):
                await worker_queue(name).enqueue_many(range(10))

    asyncio.run(fill())
    return folder


def commands() -> dict[str, list[str]]:
    on_store = ["--state-dir", str(place() / "state")]
    return {
        "Python": ["-c", "pass"],
        "the libraries": ["-c", LIBRARIES],
        "import harn": ["-c", "import harn"],
        "harn --version": ["-m", "harn", "--version"],
        "harn orchestrator queue ls": ["-m", "harn", "orchestrator", "queue", "ls", *on_store],
        "harn orchestrator fire": ["-m", "harn", "orchestrator", "fire", "ping", *on_store],
    }


def milliseconds(argv: list[str]) -> float:
    began = time.perf_counter()
    _run([sys.executable, *argv])
    return (time.perf_counter() - began) * 1e3


def modules(argv: list[str]) -> float:
    """Count the modules that a process has loaded when it ends."""
    code = "import atexit, sys; atexit.register(lambda: print(len(sys.modules), file=sys.stderr))"
    hook = place() / "counted"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(code, encoding="utf-8")
    done = _run([sys.executable, *argv], PYTHONPATH=str(hook))
    return float(done.stderr.split()[-1])


def _run(argv: list[str], **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        argv, cwd=place(), env={**kept, **environ}, capture_output=True, text=True, check=True
    )


def contests() -> Iterable[Contest]:
    """Time each command, and count what it loads."""
    yield Contest(
        TIME,
        (
            *(
                Contestant(name, functools.partial(milliseconds, argv))
                for name, argv in commands().items()
            ),
            budget(BUDGET_MS),
        ),
        unit="ms",
    )
    yield Contest(
        LOADED,
        tuple(
            Contestant(name, functools.partial(modules, argv)) for name, argv in commands().items()
        ),
        unit="modules",
        rounds=1,
        warm_up=False,
    )


WHY = "Python and the libraries are two thirds of it; see architecture.md"
GOALS = [
    Goal(f"`{name}` answers within 0.12 s", TIME, name, "the budget", at_most=1.0, why=WHY)
    for name in ("harn orchestrator queue ls", "harn orchestrator fire")
]
