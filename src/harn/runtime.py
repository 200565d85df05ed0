"""The runtime: one set of services, and the tasks that use them.

A `Runtime` owns a clock, a state directory, one service of each kind (the pools' registry, the
named permits, the event log ...) and every task without another owner. Leaving it cancels and
awaits those tasks and closes those services. Two runtimes share nothing.

`context.py` has the tasks and frames in it, `current.py` which runtime a call belongs to.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import importlib
import logging
from asyncio import _get_running_loop
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from os import PathLike
from pathlib import Path
from threading import get_ident
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Self,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    cast,
)

from harn.clock import Clock, SystemClock
from harn.context import Ambient, Frame, Task, current_frame_var, restore_frame
from harn.errors import HarnError, InvalidOption, did_you_mean
from harn.event_loop import answer_of, refuse_trio, running_loop, task_running_on
from harn.ids import IdSource
from harn.masking import mask
from harn.open_runtimes import AFTER_FORK, note_left, note_open, note_started
from harn.quiescence import alarm_now, threads_now
from harn.settings import Settings
from harn.teardown import choose_error, finish, join_cancelled, note, unwind

if TYPE_CHECKING:
    from harn.eventlog import EventLog
    from harn.storage import Store

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger: logging.Logger = logging.getLogger("harn.runtime")

NAMED_SERVICES = {
    "event_log": ("harn.eventlog", "EventLog"),
    "store": ("harn.storage", "Store"),
}
"""Services that a runtime's own methods use; named, because this module imports no room."""

SEAMS = {
    "ambient": "the work that the root task belongs to",
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
SCHEMES = "memory:// sqlite:///path file:///dir postgresql://..."
"""How a URL of each engine looks, for messages."""


class Runtime:
    """A set of services and tasks, entered with `async with`; leaving it ends all it owns.

    *storage* is a URL (`memory://`, `sqlite:///path`, `file:///dir`, `postgresql://...`); without
    one everything stays in memory, unless *state_dir* is given: then SQLite lives in it. *seed*
    with a fake *clock* makes ids and times the same in every run.

    Cancelling on the way out still closes everything, then raises the cancel.

    Programs use `event_log`, `backup`, `clock`, `settings`, `state_dir` and `aclose`. Every other
    name without an underscore is for the rooms of harn (`SEAMS`), and `dir` leaves it out.

    >>> from harn import runtime_context
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
        org_id: str | None = None,
        pool_host: Any = None,
    ) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | str)):
            raise InvalidOption("seed", seed, "an int, a string, or None")
        if state_dir is not None and not isinstance(state_dir, str | PathLike):
            raise InvalidOption("state_dir", state_dir, "a directory, or None")
        if clock is not None and not hasattr(clock, "call_at"):
            raise InvalidOption("clock", clock, "a clock, such as FakeClock(), or None")
        self.settings: Settings = Settings.load()
        self.state_dir: Path = Path(self.settings.state_dir if state_dir is None else state_dir)
        self.storage_url: str = _storage_url(storage, state_dir)
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.ids: IdSource = IdSource(lambda: self.clock.now_ms(), seed)
        self.pool_host = pool_host
        self.ambient: Ambient = Ambient(
            pipeline_id=_name("pipeline_id", pipeline_id),
            workflow_id=_name("workflow_id", workflow_id),
            run_id=_name("run_id", run_id),
            agent_session_id=_name("agent_session_id", agent_session_id),
            worker_id=_name("worker_id", worker_id),
            tenant_id=_name("tenant_id", tenant_id),
            org_id=_name("org_id", org_id),
        )
        self.root: Task = Task(self, "task_root", "root", None)
        self.tasks: set[Task] = {self.root}
        """Every task alive in this runtime, for the deadlock detector and for tools."""
        self.frame: Frame = Frame(self.root)
        self.at_exit: list[Callable[[], Awaitable[None]]] = []
        """Run first when the runtime is left, last added first; their errors are raised by it."""
        self.debug_sources: dict[str, Callable[[], list[Any]]] = {}
        self._services: dict[type[Any], Any] = {}
        self._detached: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread_id = 0
        self._given_clock = clock is not None
        self._closing = False
        self._serves_another = False
        """Whether it serves another runtime, on a thread or in a process; calls do not find it."""
        self._is_inherited = False
        """Whether a parent process opened it, before it forked this one."""
        self._keeps_nothing = False
        """Whether harn opened it implicitly and has not yet warned that nothing is kept."""
        self._token: contextvars.Token[Frame] | None = None

    def __dir__(self) -> Iterable[str]:
        return [name for name in super().__dir__() if name not in SEAMS]

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise HarnError("a Runtime can be entered once; make a new one")
        self._start()
        if not self._serves_another:
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
            note(error, (failure,))  # the error that came first is raised
        finally:
            if self._token is not None:
                restore_frame(self._token)
                self._token = None

    def _start(self) -> None:
        self._loop = running_loop()
        self._thread_id = get_ident()
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
        return get_ident() == self._thread_id

    @property
    def _where(self) -> str:
        """The state directory that its store lives in, or the masked URL of its store."""
        if self.storage_url == _storage_url(None, self.state_dir):
            return str(self.state_dir)
        return mask(self.storage_url)

    def check_here(self) -> None:
        """Raise `HarnError` if the caller is on another event loop, or in a forked process."""
        loop = self._loop
        # The usual case. To ask asyncio for the running loop is a system call in Python 3.11.
        if get_ident() == self._thread_id and loop and task_running_on(loop) is not None:
            return
        if self._is_inherited:
            raise HarnError(
                f"this Runtime ({self._where}) was opened by the parent of this process, before it "
                f"forked; {AFTER_FORK}"
            )
        running = _get_running_loop()
        if running is None:
            refuse_trio()
        elif running is not self._loop and self._loop is not None:
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
                raise HarnError("this Runtime has been closed; open a new one")
            found = self._on_loop(functools.partial(self._make, kind))
        return found

    def _make(self, kind: type[T]) -> T:
        found: T | None = self._services.get(kind)
        if found is None:
            found = self._services[kind] = kind(self)  # type: ignore[call-arg]
        return found

    def _on_loop(self, make: Callable[[], T]) -> T:
        """Call *make* on the loop's thread: parts of a service may belong to the loop.

        Two threads that ask for the same service at once also get the same one this way.
        """
        loop = self._loop
        if loop is None or self.on_loop_thread() or not loop.is_running():
            return make()
        answer: concurrent.futures.Future[T] = concurrent.futures.Future()
        with suppress(RuntimeError):  # the loop is closed: `answer_of` raises
            loop.call_soon_threadsafe(_answer, answer, make)
        return answer_of(loop, answer)

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

        Cancelling still ends everything, then raises the cancel. A process that inherited the
        runtime through a fork ends nothing: all of it belongs to its parent.
        """
        if self._closing or self._is_inherited:
            return
        self._closing = True
        self.root.cancel_requested = True
        failures: list[BaseException] = []
        while self.at_exit:
            await finish(self.at_exit.pop()(), failures)
        await finish(self._cancel_detached(), failures)
        await finish(self._unwind(), failures)
        while self._services:
            _, service = self._services.popitem()
            if (aclose := getattr(service, "aclose", None)) is not None:
                await finish(aclose(), failures)
        # Only now: until then a call without a context raises, and does not use another runtime.
        note_left(self)
        if (error := choose_error(None, failures)) is not None:
            raise error

    async def _cancel_detached(self) -> None:
        here = asyncio.current_task()
        while left := [task for task in self._detached if not task.done() and task is not here]:
            for task in left:
                task.cancel()
            await join_cancelled(left, self.clock)

    async def _unwind(self) -> None:
        if (error := await unwind(self.frame)) is not None:
            raise error


def _answer(answer: concurrent.futures.Future[T], make: Callable[[], T]) -> None:
    try:
        answer.set_result(make())
    except BaseException as error:
        answer.set_exception(error)


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
        shown = mask(storage) if isinstance(storage, str) else storage
        raise InvalidOption("storage", shown, f"a URL: {SCHEMES}")
    scheme = storage.split("://", 1)[0]
    if scheme not in STORAGE_SCHEMES:
        near = did_you_mean(scheme, STORAGE_SCHEMES)
        raise InvalidOption("storage", mask(storage), f"one of {SCHEMES}{near}")
    return storage


class RuntimeOptions(TypedDict, total=False):
    """The options of a `Runtime`, for functions that pass them on."""

    state_dir: str | Path | None
    storage: str | None
    clock: Clock | None
    seed: int | str | None
    pipeline_id: str | None
    workflow_id: str | None
    run_id: str | None
    agent_session_id: str | None
    worker_id: str | None
    tenant_id: str | None
    org_id: str | None
    pool_host: Any
