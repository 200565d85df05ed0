"""Commands on a real terminal, of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.orchestrator.processes import until

ERASED = re.compile(r"\r+[^\r\n]*\x1b\[K|\r")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """A process on a terminal, and all that it has printed there."""

    def __init__(self, process: subprocess.Popen[bytes], ours: int) -> None:
        self.process = process
        self._ours = ours
        self._read = b""
        self._reader = threading.Thread(target=self._follow, daemon=True)
        self._reader.start()

    def _follow(self) -> None:
        try:
            while piece := os.read(self._ours, 65536):
                self._read += piece
        except OSError:  # the other side has closed: this is how a terminal says it
            pass

    @property
    def shown(self) -> str:
        """All that was printed."""
        return self._read.decode(errors="replace").replace("\r\n", "\n")

    @property
    def screen(self) -> str:
        """The latest whole screen that was drawn, without colours."""
        drawn = re.findall(r"\x1b\[H(.*?)\x1b\[J", self.shown, re.DOTALL)
        return COLOURS.sub("", drawn[-1]).replace("\x1b[K", "") if drawn else ""

    @property
    def text(self) -> str:
        """What was printed to stay, without colours and without lines that were erased."""
        return COLOURS.sub("", ERASED.sub("", self.shown))

    def shows(self, text: str) -> None:
        """Wait until *text* was printed."""
        until(lambda: text in self.shown, 60)

    def draws(self, *texts: str) -> str:
        """Wait for a screen with all of *texts*, and return it."""
        return str(until(lambda: _with_all(self.screen, texts), 60))

    def types(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ends(self) -> int:
        """Wait for the end; return the exit code."""
        code = self.process.wait(timeout=60)
        self._reader.join(timeout=60)
        return code


def _with_all(screen: str, texts: tuple[str, ...]) -> str:
    return screen if all(text in screen for text in texts) else ""


@contextmanager
def on_terminal(
    *argv: str,
    columns: int = 60,
    cwd: Path | None = None,
    stdin: int | None = None,
    environ: dict[str, str] | None = None,
) -> Iterator[Terminal]:
    """Run the command on a terminal; its standard input too, unless *stdin* is given."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    unset = ("NO_COLOR", "COLUMNS", "LINES")
    inherited = {key: value for key, value in os.environ.items() if key not in unset}
    process = subprocess.Popen(
        [sys.executable, "-m", "harn", *argv],
        cwd=cwd,
        stdin=theirs if stdin is None else stdin,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm", **(environ or {})},
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)
