"""`harn orchestrator serve` as a real process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import httpx2

from harn.clock import SystemClock
from harn.triggers import sign

SECRET = "a signing secret of ours"


class Process:
    """A served manifest; what it says on stderr comes as records."""

    def __init__(self, directory: Path, *args: str, env: dict[str, str] | None = None) -> None:
        self.directory = directory
        self.said: Queue[dict[str, Any]] = Queue()
        self.lines: list[str] = []
        command = [sys.executable, "-m", "harn", "orchestrator", "serve", "--bind", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--state-dir", str(directory / "state"), *args],
            cwd=directory,
            env={**os.environ, "GITHUB_SECRET": SECRET, **(env or {})},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            with contextlib.suppress(ValueError):
                self.said.put(json.loads(line))

    def reports(self, status: str, within: float = 30) -> dict[str, Any]:
        clock = SystemClock()
        end = clock.monotonic() + within
        while clock.monotonic() < end:
            with contextlib.suppress(Empty):
                record = self.said.get(timeout=0.2)
                if record.get("status") == status:
                    return record
                continue
            if not self._listener.is_alive() and self.said.empty():
                break
        raise AssertionError(f"never {status}: {''.join(self.lines)}")

    @property
    def url(self) -> str:
        return f"http://{self.reports('ready')['bind']}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        self._listener.join(timeout=10)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def ends(self, within: float = 30) -> int:
        return self.process.wait(timeout=within)


@contextlib.contextmanager
def serving(directory: Path, *args: str, env: dict[str, str] | None = None) -> Iterator[Process]:
    process = Process(directory, *args, env=env)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.signal(signal.SIGKILL)
            process.ends()
        process.close()


def ledger(directory: Path) -> list[str]:
    """What handlers noted, one line each."""
    path = directory / "ledger"
    return path.read_text().splitlines() if path.exists() else []


def post(
    url: str, payload: Any, path: str = "/hooks/github", secret: str = SECRET
) -> httpx2.Response:
    """Send *payload* as GitHub would."""
    body = json.dumps(payload).encode()
    headers = sign("github", secret.encode(), body, int(time.time()))
    return httpx2.post(f"{url}{path}", content=body, headers=headers, trust_env=False, timeout=20)


def until(condition: Callable[[], Any], within: float = 30) -> Any:
    """Wait until *condition* holds, and return what it found."""
    clock = SystemClock()
    end = clock.monotonic() + within
    while clock.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to pass")
