"""Several worker processes, kept running by the command that started them.

Each child has a socket to its parent as its standard input. There the parent asks it to stop (`s`)
or to hurry (`h`), and the end of the socket means that the parent has ended. So children never
outlive the command. In the other direction a child sends its status. A terminal or a service
manager may signal every process: a child takes that as one more request to stop, not as a hurry.

The first child starts alone: a module that cannot be imported is reported once, and the command
ends. A child that ends later is replaced, after a pause that grows while children keep ending.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from harn.cli.progress import live_line
from harn.cli.signals import run_stoppable
from harn.cli.worker_parent import BEYOND, HURRY, STOP
from harn.clock import SystemClock
from harn.duration import to_text
from harn.plurals import counted
from harn.settings import environment_with
from harn.stopping import Stopping

logger: logging.Logger = logging.getLogger("harn.workers")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
RECENT = 60.0
"""Seconds for which the end of a child counts."""

COUNTED = ("in_flight", "acked", "deferred", "released")

Tell = Callable[[dict[str, Any]], None]

_now = SystemClock.monotonic


def pause_before_restart(ends: Iterable[float], now: float) -> float:
    """Return the seconds to wait before a child that ended is replaced.

    *ends* are the times at which the children in its place ended.

    >>> pause_before_restart([10.0], 10.0), pause_before_restart([1.0, 9.0, 10.0], 10.0)
    (0.5, 2.0)
    >>> pause_before_restart([1.0, 100.0], 100.0), pause_before_restart([0.0] * 20, 1.0)
    (0.5, 30.0)
    """
    recent = sum(at > now - RECENT for at in ends)
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** max(0, recent - 1))


class WorkerProcesses:
    """Keeps *count* children running that are started with *argv*; each stops *within* seconds."""

    def __init__(
        self, argv: Sequence[str], environ: Mapping[str, str], count: int, within: float
    ) -> None:
        self._argv = [sys.executable, "-m", "harn", *argv]
        self._environ = environment_with(environ)
        self._count = count
        self._within = within
        self._stop = asyncio.Event()
        self._children: set[_Child] = set()
        self._codes: list[int] = []
        self._tell: Tell = _keep_quiet

    def main(self, tell: Tell | None) -> int:
        """Run the children until a signal comes; *tell* gets a record when one is replaced."""
        self._tell = tell or _keep_quiet
        stopping = Stopping(self._within + BEYOND + 2.0, self._ask, ends_process=True)

        async def inside() -> int:
            stopping.at_give_up(partial(self._send, HURRY))
            return await self._run(show=tell is None)

        return run_stoppable(inside, stopping)

    async def _run(self, show: bool) -> int:
        """Start one child, then the others; return the exit code of the command."""
        first = await self._start()
        ended = asyncio.ensure_future(first.ends())
        try:
            await _first_of(first.is_ready.wait(), self._stop.wait(), ended)
            if ended.done() and not first.is_ready.is_set() and not self._stop.is_set():
                return self._left(first)  # it has printed the reason
            kept = [asyncio.ensure_future(self._keep(first))]
            kept += [asyncio.ensure_future(self._keep(None)) for _ in range(self._count - 1)]
            showing = asyncio.ensure_future(self._show()) if show else None
            try:
                await self._until_ended(kept)
            finally:
                for each in (*kept, *([showing] if showing else [])):
                    each.cancel()
            return next((code for code in self._codes if code), 0)
        finally:
            ended.cancel()
            for child in self._children:
                child.process.kill()

    async def _until_ended(self, kept: Sequence[asyncio.Future[None]]) -> None:
        """Wait for a stop and for the children's end; those that do not end are killed."""
        await _first_of(self._stop.wait(), *kept)
        self._ask()  # also when a child could not be started
        await asyncio.wait(kept, timeout=self._within + BEYOND)
        for child in self._children:
            logger.error("worker process %s has not ended in time; it is killed", child.pid)
            child.process.kill()
        for ended in await asyncio.gather(*kept, return_exceptions=True):
            if isinstance(ended, BaseException):
                raise ended

    async def _keep(self, child: _Child | None) -> None:
        """Keep one child running, and replace it when it ends, until the stop."""
        ends: deque[float] = deque(maxlen=20)
        while child is not None or not self._stop.is_set():
            child = child or await self._start()
            await child.ends()
            code = self._left(child)
            if self._stop.is_set():
                # Stopped while it imported its modules: it had no work to finish.
                self._codes.append(0 if code == 128 + signal.SIGTERM else code)
                return
            ends.append(_now())
            pause = pause_before_restart(ends, _now())
            logger.warning(
                "worker process %s ended with %s; another one starts in %s",
                child.pid,
                code,
                to_text(pause),
            )
            self._tell({"status": "restarting", "pid": child.pid, "exit_code": code})
            child = None
            stopped = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait((stopped,), timeout=pause)
            stopped.cancel()

    async def _start(self) -> _Child:
        ours, theirs = socket.socketpair()
        try:
            # A session of its own: Ctrl-C reaches the parent only, which tells its children.
            process = await asyncio.create_subprocess_exec(
                *self._argv, env=self._environ, stdin=theirs.fileno(), start_new_session=True
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours)
        child = _Child(process, reader, writer)
        self._children.add(child)
        if self._stop.is_set():
            child.send(STOP)
        return child

    def _left(self, child: _Child) -> int:
        self._children.discard(child)
        child.close()
        code = child.process.returncode or 0
        return code if code >= 0 else 128 - code

    def _ask(self) -> None:
        self._stop.set()
        self._send(STOP)

    def _send(self, what: bytes) -> None:
        for child in self._children:
            child.send(what)

    async def _show(self) -> None:
        """Show the sum of the children's counts, on a terminal."""
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            while True:
                await asyncio.wait((stopped,), timeout=1.0)
                said = [child.said for child in self._children if child.said]
                alive = counted(len(self._children), "process", "processes")
                counts = [each for record in said for each in record["queues"].values()]
                live_line.show(f"{alive}: {in_words(counts)}")
                if self._stop.is_set():
                    return
        finally:
            stopped.cancel()
            live_line.end()


class _Child:
    """One worker process, and our end of its socket."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.is_ready = asyncio.Event()
        self.said: dict[str, Any] = {}
        """Its latest status."""
        self._writer = writer
        self._listening = asyncio.ensure_future(self._listen(reader))

    async def ends(self) -> None:
        """Wait for its end. Cancelling leaves it running."""
        await self.process.wait()

    def send(self, what: bytes) -> None:
        """Send it a request: `STOP` or `HURRY`."""
        with suppress(OSError):
            self._writer.write(what)

    def close(self) -> None:
        """Close the socket of a child that has ended."""
        self._listening.cancel()
        self._writer.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            async for line in reader:
                with suppress(ValueError):
                    self.said = json.loads(line)
                    self.is_ready.set()


async def _first_of(*waits: Awaitable[Any]) -> None:
    """Wait for the first of several; coroutines among the others are cancelled."""
    futures: list[asyncio.Future[Any]] = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for given, future in zip(waits, futures, strict=True):
            if given is not future:
                future.cancel()


def in_words(counts: Iterable[Mapping[str, int]]) -> str:
    """Return the sums of consumers' counts as text."""
    listed = [*counts]
    total = {name: sum(each[name] for each in listed) for name in COUNTED}
    return ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in total.items())


def _keep_quiet(record: dict[str, Any]) -> None:
    """Print nothing: only --json prints status lines."""
