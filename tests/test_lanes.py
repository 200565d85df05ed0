"""`tools.lanes` runs CI's parts beside each other, and names the part that failed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def lanes(where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.lanes", *words]
    return subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=60)


def test_lanes_run_beside_each_other(root: Path, tmp_path: Path) -> None:
    pipe = f"{tmp_path}/pipe"
    done = lanes(root, f"mkfifo {pipe}; echo said > {pipe}", "--", f"until cat {pipe}; do :; done")

    assert done.returncode == 0, done.stdout
    assert "\nsaid\n-- in " in done.stdout


def test_a_failure_is_named_and_stops_nothing(root: Path) -> None:
    done = lanes(root, "echo one; exit 3", "echo two", "--", "echo three")

    assert done.returncode == 1
    assert "== echo one; exit 3\none\n-- exit 3 after " in done.stdout
    assert "\ntwo\n" in done.stdout and "\nthree\n" in done.stdout
    assert done.stdout.endswith("failed: echo one; exit 3\n")
