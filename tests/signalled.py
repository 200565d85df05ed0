"""Programs as real processes that get signals.

They are started from here and not by a shell, whose background jobs ignore SIGINT.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
"""So that what a program has not flushed is lost if its end loses it."""


@dataclass
class Ended:
    """How a program ended, and what it said."""

    code: int
    out: str
    err: str


class Program:
    """A process whose stdout tells how far it is."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._errors: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    def reports(self, line: str) -> None:
        """Wait for *line* on stdout."""
        while (said := self.says()) != line:
            assert said, f"it ended before it said {line!r}: {self.ends()}"

    def says(self) -> str:
        """Return the next line of stdout."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().removesuffix("\n")

    def complains(self) -> None:
        """Wait for a line on stderr."""
        while not self._errors:
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ends(self) -> Ended:
        """Wait for the end; return what was said since the last line that was heard."""
        assert self.process.stdout is not None
        out = self.process.stdout.read()
        code = self.process.wait(timeout=60)
        self._listener.join(timeout=60)
        return Ended(code, out, "".join(self._errors))


@contextmanager
def program(code: str, *args: str) -> Iterator[Program]:
    """Run *code* as a script of its own."""
    with command([sys.executable, "-c", textwrap.dedent(code), *args]) as running:
        yield running


@contextmanager
def command(
    argv: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None
) -> Iterator[Program]:
    """Run *argv*; it is killed at the end if it has not ended."""
    with subprocess.Popen(
        argv,
        cwd=cwd,
        env={**ENVIRONMENT, **(env or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Program(process)
        finally:
            if process.poll() is None:
                process.kill()
