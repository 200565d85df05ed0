"""Forks processes that run the command `serve`: all imports are done once, so each starts fast.

A line on stdin is JSON: where the manifest is, where stderr goes, what is in the environment. For
each one a process is forked; its pid is printed, and when it has ended its exit status.
"""

from __future__ import annotations

import json
import os
import sys

import uvicorn.lifespan.off  # noqa: F401

import harn.cli.serve
import harn.orchestrator
import harn.portal
import harn.storage.engines.sqlite.sqlite_driver  # noqa: F401
from harn.cli import main


def serve(place: str, said: str, env: dict[str, str]) -> None:
    """Serve the manifest of *place*; what it says on stderr goes to the file *said*."""
    os.chdir(place)
    os.environ.update(env)
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT, 0o600), 2)
    sys.stderr = os.fdopen(2, "w", buffering=1)
    where = ["--bind", "127.0.0.1:0", "--state-dir", "state"]
    sys.argv = ["harn", "orchestrator", "serve", *where]
    sys.exit(main())


if __name__ == "__main__":
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            serve(**json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
