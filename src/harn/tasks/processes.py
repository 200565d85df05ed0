"""Worker processes: parallel Python code, with values copied both ways.

Each process is started with `spawn` (a fork would copy locks and database handles that are in use)
and serves one call at a time through a pipe; a thread of this process waits at the other end.
Because a process has one call at a time, a killed worker fails only the task that it ran, and
cancelling a task stops its work: the process is killed, and the next call gets a new one. (With the
standard `ProcessPoolExecutor`, the death of one worker fails every call, and no call can be
stopped.)
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import functools
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from harn.current import current_frame
from harn.error_text import error_text
from harn.errors import HarnError, InvalidOption, WorkerDied
from harn.runtime import Runtime
from harn.tasks.foreign_runtime import TaskIdentity, run_with
from harn.tasks.threads import Threads

_spawning = threading.Lock()


class Processes:
    """At most *limit* processes, started when needed and reused."""

    def __init__(self, runtime: Runtime, limit: int) -> None:
        self.limit: int | None = limit
        self._threads = Threads(runtime, limit, name="process")
        self._idle: list[WorkerProcess] = []

    def bind(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return an async function that runs *fn* in one of these processes."""
        return functools.partial(self.call, fn)

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run *fn* with copies of *args* in a process; return a copy of the result.

        Cancelling kills the process.
        """
        task = current_frame().task
        call = ProcessCall(self, fn, args, TaskIdentity.of(task))
        waiting = asyncio.ensure_future(self._threads.call(call.run))
        cancel: asyncio.CancelledError | None = None
        while not waiting.done():
            try:
                await asyncio.wait((waiting,))
            except asyncio.CancelledError as error:
                cancel = error
                call.stop()
                waiting.cancel()
        if cancel is not None:
            if not waiting.cancelled():
                waiting.exception()
            raise cancel
        return waiting.result()

    def take(self) -> WorkerProcess:
        """Return an idle process, or a new one. (On a worker thread.)"""
        while True:
            try:
                worker = self._idle.pop()
            except IndexError:
                return WorkerProcess()
            if worker.process.is_alive():
                return worker
            worker.kill()

    def keep(self, worker: WorkerProcess) -> None:
        """Keep *worker* for the next call. (On a worker thread.)"""
        self._idle.append(worker)

    async def aclose(self) -> None:
        """End every process and its thread."""
        await self._threads.aclose()
        while self._idle:
            self._idle.pop().kill()


class SharedProcesses:
    """The worker processes of a runtime: as many as there are processors."""

    def __init__(self, runtime: Runtime) -> None:
        self.processes: Processes = Processes(runtime, os.cpu_count() or 1)

    async def aclose(self) -> None:
        """End the processes with the runtime."""
        await self.processes.aclose()


class ProcessCall:
    """One call on its way through a process."""

    def __init__(
        self,
        processes: Processes,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        identity: TaskIdentity,
    ) -> None:
        self._processes = processes
        self._fn = fn
        self._args = args
        self._identity = identity
        self._lock = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._stopped = False

    def run(self) -> Any:
        """Send the call to a process, wait, and return the result. (On a worker thread.)"""
        payload = _packed(self._fn, self._args, self._identity)
        worker = self._processes.take()
        with self._lock:
            self._worker = worker
            if self._stopped:
                worker.kill()
        current_frame().task.thread = f"process {worker.process.pid}"
        try:
            reply = worker.ask(payload)
        except (EOFError, OSError):
            worker.kill()
            code = worker.process.exitcode
            name = getattr(self._fn, "__qualname__", self._fn)
            raise WorkerDied(
                f"the worker process {worker.process.pid} ended {_end_of(code)} while it ran "
                f"{name}; part of the work may have been done"
            ) from None
        with self._lock:
            self._worker = None
        self._processes.keep(worker)
        return _unpacked(reply)

    def stop(self) -> None:
        """Kill the process that runs the call, if one does. (On the loop.)"""
        with self._lock:
            self._stopped = True
            if self._worker is not None:
                self._worker.process.kill()  # its thread sees the end of the pipe and cleans up


class WorkerProcess:
    """A process that serves calls, and this side of its pipe."""

    def __init__(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self.process: SpawnProcess = spawn.Process(
            target=_serve, args=(theirs,), name="harn-worker", daemon=True
        )
        with _spawning:
            self.process.start()
        theirs.close()
        # At exit Python sends SIGTERM, which the process ignores, and would wait forever.
        atexit.register(self.process.kill)

    def ask(self, payload: bytes) -> bytes:
        """Send one call and wait for its reply; `EOFError` or `OSError` if the process dies."""
        self._pipe.send_bytes(payload)
        return self._pipe.recv_bytes()

    def kill(self) -> None:
        """End the process now."""
        self.process.kill()
        self.process.join()
        atexit.unregister(self.process.kill)
        self._pipe.close()


def _end_of(code: int | None) -> str:
    if code is not None and code < 0:
        return f"by signal {signal.Signals(-code).name}"
    hint = " (a script must start its work under `if __name__ == '__main__':`)"
    return f"with code {code}{hint if code == 1 else ''}"


def _packed(fn: Callable[..., Any], args: tuple[Any, ...], identity: TaskIdentity) -> bytes:
    try:
        return pickle.dumps((fn, args, identity))
    except Exception as error:
        raise InvalidOption(
            "fn",
            fn,
            "with isolation='process' the function must be importable (a module-level `def`) and "
            f"the arguments and context values picklable: {error_text(error)}",
        ) from error


def _unpacked(reply: bytes) -> Any:
    try:
        kind, content, trace = pickle.loads(reply)  # noqa: S301 - from a process that we started
    except Exception as error:
        raise HarnError(
            f"the result cannot be copied between processes: {error_text(error)}"
        ) from error
    if kind == "value":
        return content
    if kind == "error":
        content.add_note(f"in a worker process:\n{trace}")
        raise content
    raise HarnError(f"{content}\nin a worker process:\n{trace}")


def _serve(pipe: Connection) -> None:
    """Answer calls until the other end is closed. (In the worker process.)"""
    # A terminal or a service manager signals every process. The parent decides when this one ends.
    signal.signal(signal.SIGINT, _ignore)
    signal.signal(signal.SIGTERM, _ignore)
    threading.Thread(target=_end_with_parent, name="harn-parent", daemon=True).start()
    while True:
        try:
            payload = pipe.recv_bytes()
        except (EOFError, OSError):
            return
        pipe.send_bytes(_answer(payload))


def _ignore(number: int, frame: object) -> None:
    """Ignore a signal. (A program that the function starts would inherit SIG_IGN, but not this.)"""


def _end_with_parent() -> None:
    """End this process when its parent has ended, also when the parent was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(128 + signal.SIGTERM)


def _answer(payload: bytes) -> bytes:
    try:
        fn, args, identity = pickle.loads(payload)  # noqa: S301 - from the process that started us
        value = contextvars.copy_context().run(run_with, identity.frame(), fn, *args)
    except BaseException as error:
        return _pack_error(error)
    try:
        return pickle.dumps(("value", value, ""))
    except Exception as error:
        kind, reason = type(value).__name__, error_text(error)
        text = f"the result ({kind}) cannot be copied between processes: {reason}"
        return pickle.dumps(("refused", text, ""))


def _pack_error(error: BaseException) -> bytes:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, Exception):
        try:
            packed = pickle.dumps(("error", error, trace))
            pickle.loads(packed)  # noqa: S301 - our own bytes: some errors fail only when unpacked
            return packed
        except Exception:  # noqa: S110 - then it is sent as text
            pass
    return pickle.dumps(("refused", error_text(error), trace))
