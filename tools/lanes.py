"""Run commands in lanes: `python -m tools.lanes 'a' 'b' -- 'c'` runs a and then b, beside c.

The commands of a lane run one after the other. What a command says is shown when it has ended,
whole and under its name. A command that fails stops nothing, so that one run tells of every
failure; the last lines name them, and the exit code is 1.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable

SHOWING = threading.Lock()


def main() -> int:
    """Run the lanes of the command line."""
    failed: list[str] = []
    lanes = [
        threading.Thread(target=_run_lane, args=(lane, failed)) for lane in _lanes(sys.argv[1:])
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    for command in failed:
        print(f"failed: {command}")
    return 1 if failed else 0


def _lanes(words: Iterable[str]) -> list[list[str]]:
    lanes: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            lanes.append([])
        else:
            lanes[-1].append(word)
    return lanes


def _run_lane(commands: list[str], failed: list[str]) -> None:
    for command in commands:
        begun = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            done = subprocess.run(command, shell=True, stdout=said, stderr=said)  # noqa: S602
            said.seek(0)
            took = time.monotonic() - begun
            with SHOWING:
                ended = f"exit {done.returncode} after" if done.returncode else "in"
                print(f"\n== {command}\n{said.read()}-- {ended} {took:.0f} s", flush=True)
        if done.returncode:
            failed.append(command)


if __name__ == "__main__":
    sys.exit(main())
