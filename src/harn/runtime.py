"""The runtime: one world of named things, and who is running in it.

A `Runtime` owns a clock, a state directory, one service of each kind (the pools' registry, the
named permits, the event log ...) and every task without another owner. Leaving it cancels and
awaits those tasks and closes those services. Two runtimes share nothing.

Who is running in it is told in `context.py`, whose names are importable from here.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import importlib
import inspect
import logging
import threading
import weakref
from asyncio import _get_running_loop
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from harn.clock import Clock, SystemClock, resolve
from harn.context import (
    Ambient as Ambient,
    Frame as Frame,
    RuntimeContext as RuntimeContext,
    RuntimeDebug as RuntimeDebug,
    Task as Task,
    current_frame_var as current_frame_var,
)
from harn.duration import Duration, to_seconds
from harn.errors import HarnError, InvalidOption, did_you_mean
from harn.graceful import asked, raise_if_asked
from harn.ids import IdSource
from harn.masking import mask
from harn.open_runtimes import note_left, note_open, note_started, only_open
from harn.quiescence import alarm_now, threads_now
from harn.settings import Settings
from harn.teardown import join_cancelled, note, unwind
from harn.telemetry.spans import current_ids

if TYPE_CHECKING:
    from harn.eventlog import EventLog
    from harn.storage import Store

T = TypeVar("T")

logger = logging.getLogger("harn.runtime")

NAMED_SERVICES = {
    "event_log": ("harn.eventlog", "EventLog"),
    "store": ("harn.storage", "Store"),
}
"""Services that a runtime's own methods use. Named, not imported: ground knows no room above it."""

SEAMS = {
    "ambient": "what the root task knows of the work it belongs to",
    "at_exit": "called first when the runtime is left",
    "check_here": "raises where the caller is on another loop or in a forked process",
    "closing": "whether the runtime takes no more work",
    "debug_sources": "what `runtime_context().debug` asks",
    "forget": "drops a service without closing it",
    "frame": "where calls without a context belong",
    "ids": "makes ids",
    "loop": "the event loop",
    "on_loop_thread": "whether the caller is on the loop's thread",
    "own": "holds an asyncio task until the runtime is left",
    "pool_host": "the host of tenant and org pools",
    "root": "the root task",
    "service": "the one service of a kind",
    "storage_url": "the store, with its password",
    "tasks": "every task that is alive",
    "warn_if_nothing_is_kept": "logs that an implicit runtime is in memory",
}
"""Attributes of a `Runtime` that the rooms of harn use, and what each is for."""

STORAGE_SCHEMES = ("memory", "sqlite", "file", "postgresql", "postgres")


class Runtime:
    """A world of named things, entered with `async with`; leaving it ends all it owns.

    *storage* is a URL (`memory://`, `sqlite:///path`, `file:///dir`, `postgresql://...`); without
    one everything stays in memory, unless *state_dir* is given: then SQLite lives in it. *seed*
    with a fake *clock* makes ids and times the same in every run.

    Cancelling on the way out still closes everything, then raises the cancel.

    Programs use `event_log`, `backup`, `clock`, `settings`, `state_dir` and `aclose`. The other
    names without an underscore are for the rooms of harn (`SEAMS`).

    >>> async def main() -> str:
    ...     async with Runtime(tenant_id="acme"):
    ...         return runtime_context().tenant_id
    >>> asyncio.run(main())
    'acme'
    """

    def __init__(
        self,
        *,
        state_dir: str | Path | None = None,
        storage: str | None = None,
        clock: Clock | None = None,
        seed: int | str | None = None,
        pipeline_id: str | None = None,
        workflow_id: str | None = None,
        run_id: str | None = None,
        agent_session_id: str | None = None,
        worker_id: str | None = None,
        tenant_id: str | None = None,
        pool_host: Any = None,
    ) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | str)):
            raise InvalidOption("seed", seed, "an int, a string, or None")
        if state_dir is not None and not isinstance(state_dir, str | PathLike):
            raise InvalidOption("state_dir", state_dir, "a directory, or None")
        if clock is not None and not hasattr(clock, "call_at"):
            raise InvalidOption("clock", clock, "a clock, such as FakeClock(), or None")
        self.settings = Settings.load()
        self.state_dir = Path(self.settings.state_dir if state_dir is None else state_dir)
        self.storage_url = _storage_url(storage, state_dir)
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.ids = IdSource(lambda: self.clock.now_ms(), seed)
        self.pool_host = pool_host
        self.ambient = Ambient(
            pipeline_id=_name("pipeline_id", pipeline_id),
            workflow_id=_name("workflow_id", workflow_id),
            run_id=_name("run_id", run_id),
            agent_session_id=_name("agent_session_id", agent_session_id),
            worker_id=_name("worker_id", worker_id),
            tenant_id=_name("tenant_id", tenant_id),
        )
        self.root = Task(self, "task_root", "root", None)
        self.tasks: set[Task] = {self.root}
        """Every task alive in this runtime, for the deadlock detector and for tools."""
        self.frame = Frame(self.root)
        self.at_exit: list[Callable[[], Awaitable[None]]] = []
        """Run first when the runtime is left, last added first; their errors come out of it."""
        self.debug_sources: dict[str, Callable[[], list[Any]]] = {}
        self._services: dict[type[Any], Any] = {}
        self._detached: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._given_clock = clock is not None
        self._closing = False
        self._is_apart = False
        """Whether it serves another runtime, on a thread or in a process; no call means it."""
        self._is_inherited = False
        """Whether a parent process opened it, before it forked this one."""
        self._keeps_nothing = False
        """Whether harn made it by itself, and has not yet said that it keeps nothing."""
        self._token: contextvars.Token[Frame] | None = None

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise HarnError("a Runtime can be entered once; make a new one")
        self._start()
        if not self._is_apart:
            note_open(self)
        self._token = current_frame_var.set(self.frame)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except Exception as failure:
            if error is None:
                raise
            note(error, (failure,))  # what was on its way out first comes out
        finally:
            if self._token is not None:
                restore_frame(self._token)
                self._token = None

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        note_started(self)
        self.root.aio = asyncio.current_task()
        self._known_threads = threads_now()
        self._known_alarm = alarm_now()
        if not self._given_clock:
            self.clock = getattr(self._loop, "harn_clock", None) or self.clock

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that this runtime lives on."""
        if self._loop is None:
            raise HarnError("this Runtime has not been entered; use `async with Runtime(...)`")
        return self._loop

    @property
    def closing(self) -> bool:
        """Whether the runtime is being left and takes no more work."""
        return self._closing

    def on_loop_thread(self) -> bool:
        """Tell whether the caller runs on the loop's own thread."""
        return threading.get_ident() == self._thread_id

    @property
    def _where(self) -> str:
        """The state directory that its store lives in, or the masked URL of its store."""
        if self.storage_url == _storage_url(None, self.state_dir):
            return str(self.state_dir)
        return mask(self.storage_url)

    def check_here(self) -> None:
        """Raise `HarnError` if the caller is on another event loop, or in a forked process."""
        if self._is_inherited:
            raise HarnError(
                f"this Runtime ({self._where}) was opened by the parent of this process, before it "
                "forked; a child process opens its own: `async with Runtime(...)`"
            )
        running = _get_running_loop()
        if running is not None and running is not self._loop and self._loop is not None:
            raise HarnError(
                f"this Runtime ({self._where}) lives on another event loop; call it with "
                "from_thread(fn, *args) on a thread, as in "
                "`await asyncio.to_thread(harn.from_thread, fn, *args)`"
            )

    def warn_if_nothing_is_kept(self, call: str) -> None:
        """Log, once, that *call* went to a runtime in memory that harn opened by itself."""
        if self._keeps_nothing:
            self._keeps_nothing = False
            logger.warning(
                "%s without an open Runtime: harn made one in memory, and nothing in it is kept "
                "when the process ends; open one with a store, "
                "as in `async with Runtime(state_dir=...)`",
                call,
            )

    def service(self, kind: type[T]) -> T:
        """Return this runtime's one *kind*, made as `kind(runtime)` on first use.

        One that has an `aclose` is closed with the runtime, last made first.
        """
        self.check_here()
        found: T | None = self._services.get(kind)
        if found is None:
            if self._closing:
                raise HarnError("this Runtime has been left; open a new one")
            found = self._on_loop(functools.partial(self._make, kind))
        return found

    def _make(self, kind: type[T]) -> T:
        found: T | None = self._services.get(kind)
        if found is None:
            found = self._services[kind] = kind(self)  # type: ignore[call-arg]
        return found

    def _on_loop(self, make: Callable[[], T]) -> T:
        """Call *make* on the loop's thread: what a service is made of may belong to the loop.

        So two threads that ask for the same service at once get the same one, too.
        """
        loop = self._loop
        if loop is None or self.on_loop_thread() or not loop.is_running():
            return make()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        with suppress(RuntimeError):  # the loop is closed: said below
            loop.call_soon_threadsafe(_answer, answer, make)
        while True:
            try:
                return answer.result(timeout=1.0)
            except concurrent.futures.TimeoutError:
                if answer.done():
                    raise
                if loop.is_closed():
                    raise HarnError("the event loop of this runtime has been closed") from None

    def forget(self, kind: type[T]) -> T | None:
        """Drop this runtime's *kind* without closing it; the next use makes a new one."""
        return cast("T | None", self._services.pop(kind, None))

    @property
    def event_log(self) -> EventLog:
        """This runtime's event log."""
        return cast("EventLog", self._named("event_log"))

    async def backup(self, path: str | PathLike[str]) -> None:
        """Copy this runtime's SQLite store to the new file *path*, while it is in use.

        The copy is one moment of the store, mode 0600, synced, and complete once it has its name.
        Unlike the store itself it may be opened by any SQLite, the module `sqlite3` included.
        A file that exists, or a store that is not SQLite, is a `StorageError`. Cancelling leaves
        no file.
        """
        await cast("Store", self._named("store")).backup(path)

    def _named(self, name: str) -> object:
        module, attribute = NAMED_SERVICES[name]
        return self.service(getattr(importlib.import_module(module), attribute))

    def own(self, task: asyncio.Future[Any]) -> None:
        """Hold *task* until it is done; leaving the runtime cancels and awaits it."""
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)

    async def aclose(self) -> None:
        """End everything this runtime owns. A second call does nothing.

        A process that inherited it through a fork leaves it alone: its parent owns all of it.
        """
        if self._closing or self._is_inherited:
            return
        self._closing = True
        self.root.cancel_requested = True
        errors: list[BaseException] = []
        while self.at_exit:
            await _noting(errors, self.at_exit.pop())
        await _noting(errors, self._cancel_detached)
        await _noting(errors, self._unwind)
        while self._services:
            _, service = self._services.popitem()
            await _noting(errors, functools.partial(_close, service))
        # Only now: until then a call without a context is refused, not sent to another runtime.
        note_left(self)
        if errors:
            raise _first_of(errors)

    async def _cancel_detached(self) -> None:
        here = asyncio.current_task()
        while left := [task for task in self._detached if not task.done() and task is not here]:
            for task in left:
                task.cancel()
            await join_cancelled(left, self.clock)

    async def _unwind(self) -> None:
        if (error := await unwind(self.frame)) is not None:
            raise error

    def _context(self, task: Task) -> RuntimeContext:
        """Describe *task* in full."""
        trace_id, span_id = current_ids()
        ambient = {name: getattr(task.ambient, name) for name in Ambient.__slots__}
        return RuntimeContext(
            task_id=task.id,
            parent_task_id=task.parent.id if task.parent else None,
            root_task_id=task.root.id,
            task_name=task.name,
            task_group_id=task.group_id,
            scope_id=task.group_id or task.root.id,
            trace_id=trace_id,
            span_id=span_id,
            context_values=dict(task.values),
            cancelled=task.cancelled,
            debug=RuntimeDebug(**{name: ask() for name, ask in self.debug_sources.items()}),
            **ambient,
        )


def _answer(answer: concurrent.futures.Future[T], make: Callable[[], T]) -> None:
    try:
        answer.set_result(make())
    except BaseException as error:
        answer.set_exception(error)


async def _noting(errors: list[BaseException], step: Callable[[], Awaitable[None]]) -> None:
    """Carry out *step* to its end, adding what it raises to *errors*.

    It runs as a task of its own: a cancel aimed at us must not stop the closing half-way.
    """
    closing = asyncio.ensure_future(_awaited(step))
    while not closing.done():
        try:
            await asyncio.wait((closing,))
        except asyncio.CancelledError as error:
            errors.append(error)
    if not closing.cancelled() and (failure := closing.exception()) is not None:
        errors.append(failure)


async def _awaited(step: Callable[[], Awaitable[None]]) -> None:
    await step()


async def _close(service: object) -> None:
    aclose: Callable[[], Awaitable[None]] | None = getattr(service, "aclose", None)
    if aclose is not None:
        await aclose()


def _first_of(errors: list[BaseException]) -> BaseException:
    """Choose what comes out: a cancel before anything else; the others become notes."""
    chosen = next((e for e in errors if isinstance(e, asyncio.CancelledError)), errors[0])
    for error in errors:
        if error is not chosen and not isinstance(error, asyncio.CancelledError):
            chosen.add_note(f"while the runtime closed: {type(error).__name__}: {error}")
    return chosen


def _name(option: str, value: str | None) -> str | None:
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise InvalidOption(option, value, "a non-empty string, or None")
    return value


def _storage_url(storage: str | None, state_dir: str | Path | None) -> str:
    if storage is None:
        if state_dir is None:
            return "memory://"
        path = Path(state_dir) / "events.sqlite"
        return f"sqlite:///{path}"
    if not isinstance(storage, str) or "://" not in storage:
        raise InvalidOption("storage", _masked(storage), f"a URL: {_schemes()}")
    scheme = storage.split("://", 1)[0]
    if scheme not in STORAGE_SCHEMES:
        near = did_you_mean(scheme, STORAGE_SCHEMES)
        raise InvalidOption("storage", mask(storage), f"one of {_schemes()}{near}")
    return storage


def _masked(value: object) -> object:
    return mask(value) if isinstance(value, str) else value


def _schemes() -> str:
    return "memory:// sqlite:///path file:///dir postgresql://..."


def restore_frame(token: contextvars.Token[Frame]) -> None:
    """Make the frame current again that was so before *token*."""
    try:
        current_frame_var.reset(token)
    except ValueError:
        # Left in another context than it was entered in, as a test fixture may be.
        if token.old_value is not contextvars.Token.MISSING:
            current_frame_var.set(token.old_value)


_implicit: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Runtime] = (
    weakref.WeakKeyDictionary()
)


def current_frame() -> Frame:
    """Return the innermost frame of the code now running, which must be on the runtime's loop.

    A thread without an event loop may ask too.
    """
    frame = calling_frame()
    frame.task.runtime.check_here()
    return frame


def calling_frame() -> Frame:
    """Return the frame that a call from here belongs to, on whatever loop or thread."""
    frame = current_frame_var.get(None)
    if frame is None:
        return _without_context().frame
    if frame.task.runtime._is_inherited:
        frame.task.runtime.check_here()  # which says why not
    return frame


def current_runtime() -> Runtime:
    """Return the runtime of the calling context, else the only open one of this process.

    So a request handler finds the runtime that the application's lifespan opened, and a thread
    the one of `run_in_thread`. With several open and none in the context it raises `HarnError`.
    If none is open, the event loop gets one in memory, which keeps nothing when it ends.

    >>> async def main() -> bool:
    ...     async with Runtime() as runtime:
    ...         return current_runtime() is runtime
    >>> asyncio.run(main())
    True
    """
    return calling_frame().task.runtime


def _without_context() -> Runtime:
    found = only_open()
    return found if found is not None else _implicit_runtime()


def _implicit_runtime() -> Runtime:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise HarnError(
            "no runtime is open: call this inside harn.run(...), `async with Runtime()`, "
            "or `with run_in_thread()`"
        ) from None
    runtime = _implicit.get(loop)
    if runtime is None or runtime.closing:
        runtime = _implicit[loop] = Runtime()
        runtime._keeps_nothing = True
        runtime._start()
        _close_with_loop(runtime)
    return runtime


def _close_with_loop(runtime: Runtime) -> None:
    # asyncio.run closes every living async generator before it closes the loop: being one is
    # the only way to be told, awaitably, that a loop ends.
    async def until_the_end() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await runtime.aclose()

    generator = until_the_end()
    runtime._until_the_end = generator  # type: ignore[attr-defined]
    try:
        generator.asend(None).send(None)
    except StopIteration:
        pass


def runtime_context() -> RuntimeContext:
    """Tell who is running here, and on whose behalf.

    >>> async def main() -> str:
    ...     return runtime_context().task_id
    >>> run(main)
    'task_root'
    """
    task = calling_frame().task
    return task.runtime._context(task)


def runtime_context_get(key: str, default: Any = None) -> Any:
    """Return this task's context value under *key*."""
    return calling_frame().task.values.get(key, default)


def runtime_context_set(key: str, value: Any) -> Any:
    """Set a context value for this task and the children it starts from now on.

    Returns the previous value, or None.
    """
    if not isinstance(key, str) or not key:
        raise InvalidOption("key", key, "a non-empty string")
    task = calling_frame().task
    previous = task.values.get(key)
    task.values = {**task.values, key: value}
    return previous


def runtime_context_clear(key: str) -> Any:
    """Remove a context value from this task; returns what it was, or None."""
    task = calling_frame().task
    left = dict(task.values)
    previous = left.pop(key, None)
    task.values = left
    return previous


def runtime_context_values() -> dict[str, Any]:
    """Return a copy of this task's context values."""
    return dict(calling_frame().task.values)


async def sleep(duration: Duration) -> None:
    """Wait for *duration* by the runtime's clock (a bare number is seconds).

    Cancelling calls the timer off; a graceful stop ends the wait with `TaskCancelled`.
    """
    seconds = to_seconds(duration)
    if asked:
        raise_if_asked()
    task = current_frame().task
    clock = task.runtime.clock
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_at(clock.monotonic() + seconds, functools.partial(resolve, woken))
    before, task.parked = task.parked, woken
    try:
        await woken
    finally:
        if task.parked is woken:
            task.parked = before
        timer.cancel()


def run(main: Callable[..., Any], /, *args: Any, **runtime_options: Any) -> Any:
    """Run *main* with *args* inside a new `Runtime` and event loop; return its result.

    A plain function runs on a worker thread. Ctrl-C cancels *main* and ends all the runtime owns.

    >>> async def main(name: str) -> str:
    ...     return f"hello, {name}"
    >>> run(main, "world")
    'hello, world'
    """
    if not callable(main):
        raise InvalidOption("main", main, "a function, such as an `async def` (not its result)")

    async def inside() -> Any:
        async with Runtime(**runtime_options):
            if _is_async(main):
                return await main(*args)
            context = contextvars.copy_context()
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, functools.partial(context.run, main, *args))

    return asyncio.run(inside())


def _is_async(fn: Callable[..., Any]) -> bool:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(
        getattr(fn, "__call__", None)  # noqa: B004 - the method itself, to see if it is async
    )
