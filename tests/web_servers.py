"""The web applications under `examples/web`, run under real servers."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from harn import worker_queue

EXAMPLES = Path(__file__).parent.parent / "examples" / "web"


@contextmanager
def served(where: Path, server: tuple[str, ...], name: str, **environ: str) -> Iterator[Served]:
    """Run *server* with the application *name* of the directory *where*."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        fd, port = listening.fileno(), listening.getsockname()[1]
        words = [each.format(fd=fd, port=port) for each in server]
        if any("{port}" in each for each in server):
            listening.close()  # this server takes no socket, only the number
        process = subprocess.Popen(
            [sys.executable, "-m", *words, f"{name}:app"],
            cwd=where,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environ},
            pass_fds=[fd] if listening.fileno() >= 0 else [],
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield Served(process, port)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()


class Served:
    """A running server; a request waits until the server has begun."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self._port = port
        self._url = f"http://127.0.0.1:{port}"

    async def post(self, path: str) -> Any:
        return await asyncio.to_thread(self._post, path)

    def _post(self, path: str) -> Any:
        until = time.monotonic() + 60
        while not self._listens() and time.monotonic() < until:
            time.sleep(0.05)
        with urlopen(Request(self._url + path, method="POST"), timeout=60) as answer:
            return json.load(answer)

    def _listens(self) -> bool:
        """Whether requests are taken; a server that was given a socket does so at once."""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=60).close()
        except ConnectionRefusedError:
            return False
        return True

    def tell_to_stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    async def log(self) -> str:
        """Wait until the server has ended, and return what it logged."""
        _, text = await asyncio.to_thread(self._process.communicate, None, 60)
        assert self._process.returncode in (0, 128 + signal.SIGTERM, -signal.SIGTERM), text
        return text


def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a new store's URL, and let this process run the examples' jobs as a worker does."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    importlib.import_module("jobs")
    return f"sqlite:///{tmp_path / 'reviews.sqlite'}"


async def until_ready(count: int) -> None:
    async with asyncio.timeout(60):
        while (await worker_queue("reviews").summary()).ready < count:
            await asyncio.sleep(0.05)
