"""The tracer of `tools/walks.py` follows each walk from its first call to its last."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_walk_is_traced_from_end_to_end(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.walks"], cwd=root, capture_output=True, text=True, check=True
    )

    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert [name for name, *_ in rows] == [
        "pool submit to result",
        "SQLite enqueue",
        "SQLite claim",
        "SQLite ack",
        "webhook to 202",
        "then to pool and settled",
        "rate limit, alone",
    ]
    for name, calls, files, changes, inner, threads in rows:
        assert int(calls) >= int(files) > 1, name
        assert int(calls) > int(changes) > 0 <= int(inner), name
        assert int(threads) >= (2 if name.startswith("SQLite") else 1), name
