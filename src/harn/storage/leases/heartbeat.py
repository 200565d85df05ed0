"""One thread for each runtime that renews what would expire: leases and claims.

Code that blocks the event loop must not let a lease expire. So renewals run on a thread with an
event loop and store connections of its own. It starts with the first renewal, sleeps while there
is nothing to renew, and ends with the runtime. A forked child has no such thread and renews nothing
of its parent's. With a fake clock the same steps run on the runtime's loop: no real time passes.

`lease_renewal.py` renews one lease. An owner of many claims brings a step of its own, which renews
those that are due in one operation.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from harn.clock import Clock, SystemClock, Timer, resolve
from harn.errors import HarnError, StorageBusy
from harn.quiescence import OWN_THREADS
from harn.storage.contract import Durability
from harn.storage.operations import Recipe
from harn.storage.store import ReopenedStore, Store

if TYPE_CHECKING:
    from harn.runtime import Runtime

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("harn.storage")

THREAD_NAME = f"{OWN_THREADS}heartbeat"
AFTER_AN_ERROR = 1.0
"""Seconds after which a step that raised is called again."""

Step = Callable[[], Awaitable[float | None]]
"""Renews what is due. Returns when to be called again, or None: not before the beat is woken."""


class Heartbeat:
    """The beats of a runtime and the thread they run on: `runtime.service(Heartbeat)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.clock: Clock = runtime.clock if runtime.clock.is_fake else SystemClock()
        """The time that steps are called by."""
        self._beats: set[Beat] = set()
        self._thread: _HeartbeatThread | None = None
        self._is_closed = False

    def beat(self, name: str, store: Store, step: Step) -> Beat:
        """Return a beat that calls *step* on the thread once it is woken; *name* is for the log."""
        beat = Beat(self, name, store, step)
        self._beats.add(beat)
        return beat

    def tell(self, fn: Callable[..., None], *args: object) -> None:
        """Call *fn* on the runtime's loop; a step tells its owner this way."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: its tasks have ended
            self._runtime.loop.call_soon_threadsafe(fn, *args)

    async def aclose(self) -> None:
        """Stop every beat and end the thread.

        Cancelling ends the wait; the thread ends all the same.
        """
        self._is_closed = True
        for beat in list(self._beats):
            beat.stop()
        if self._thread is not None:
            await self._thread.aclose()

    # -- for its beats -----------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, unless it runs already or none is needed."""
        if self._thread is None and not self.clock.is_fake and not self._is_closed:
            self._thread = _HeartbeatThread(self.clock)

    def call(self, fn: Callable[[], None]) -> None:
        """Call *fn* on the loop that the beats run on."""
        if self._thread is not None:
            self._thread.call(fn)
        elif self.clock.is_fake:
            fn()

    def connection(self, store: Store) -> Store | ReopenedStore:
        """Return what carries operations out on the beats' loop."""
        return store if self._thread is None else self._thread.connection(store)

    def own(self, task: asyncio.Task[None]) -> None:
        """Hold a beat's task where no thread does."""
        if self.clock.is_fake:
            self._runtime.own(task)

    def forget(self, beat: Beat) -> None:
        """Drop *beat*, which was stopped."""
        self._beats.discard(beat)


class Beat:
    """A step that is called when it is due. Only the runtime's loop may call `wake` and `stop`."""

    def __init__(self, heartbeat: Heartbeat, name: str, store: Store, step: Step) -> None:
        self._heartbeat = heartbeat
        self._clock = heartbeat.clock
        self._name = name
        self._store = store
        self._step = step
        # The rest belongs to the loop that the step runs on.
        self._task: asyncio.Task[None] | None = None
        self._bell: asyncio.Future[None] | None = None
        self._is_woken = False

    def wake(self) -> None:
        """Call the step now, due or not."""
        self._heartbeat.start()
        self._heartbeat.call(self._ring)

    def stop(self) -> None:
        """Call the step no more. An operation under way may still be carried out."""
        self._heartbeat.forget(self)
        self._heartbeat.call(self._end)

    async def run(self, recipe: Recipe[T], *, by: float, durability: Durability | None = None) -> T:
        """Carry an operation of the step out; `StorageBusy` if it is not answered *by* then.

        Then, and after a cancel, it may still be carried out.
        """
        connection = self._heartbeat.connection(self._store)
        answer = asyncio.ensure_future(connection.run(recipe, durability=durability))
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: resolve(woken))
        timer = self._clock.call_at(by, partial(resolve, woken), background=True)
        try:
            await woken
            if not answer.done():
                raise StorageBusy("the store does not answer")
            return answer.result()
        finally:
            timer.cancel()
            answer.cancel()

    def _ring(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._live())
            self._heartbeat.own(self._task)
        elif self._bell is not None:
            resolve(self._bell)
        else:
            self._is_woken = True  # the step is under way: it is called again at once

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _live(self) -> None:
        while True:
            try:
                due = await self._step()
            except Exception as error:
                if not threading.main_thread().is_alive():
                    return  # the program ends: Python 3.12 then starts no thread for a connection
                self._report(error)
                due = self._clock.monotonic() + AFTER_AN_ERROR
            if not self._is_woken:
                await self._pause(due)
            self._is_woken = False

    def _report(self, error: Exception) -> None:
        """Log what a step raised: a line for a store that is full or away, else the traceback."""
        is_ours = isinstance(error, HarnError)
        logger.log(
            logging.WARNING if is_ours else logging.ERROR,
            "the heartbeat of %s failed and is tried again: %s",
            self._name,
            error if is_ours else repr(error),
            exc_info=None if is_ours else error,
        )

    async def _pause(self, until: float | None) -> None:
        """Wait until then, or until woken."""
        bell = self._bell = asyncio.get_running_loop().create_future()
        timer: Timer | None = None
        if until is not None:
            timer = self._clock.call_at(until, partial(resolve, bell), background=True)
        try:
            await bell
        finally:
            self._bell = None
            if timer is not None:
                timer.cancel()


class _HeartbeatThread:
    """A thread with an event loop, and a connection to each store that it is asked for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.new_event_loop()
        self._connections: dict[Store, ReopenedStore] = {}
        self._ending = asyncio.Event()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended.set_running_or_notify_cancel()  # now no waiter that is cancelled cancels it
        # A daemon, so that a runtime that is never left cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def call(self, fn: Callable[[], None]) -> None:
        """Call *fn* on this thread's loop, in the order of the calls."""
        with contextlib.suppress(RuntimeError):  # it is closed: the beats have ended
            self._loop.call_soon_threadsafe(fn)

    def connection(self, store: Store) -> ReopenedStore:
        """Return this thread's connection to *store*, opened on first use."""
        found = self._connections.get(store)
        if found is None:
            found = self._connections[store] = ReopenedStore(store, self._clock)
        return found

    async def aclose(self) -> None:
        """End what runs here, close the connections, and wait for the thread."""
        self.call(self._ending.set)
        # Not `join` on an executor: when the program ends, no executor takes more work.
        await asyncio.wrap_future(self._ended)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except Exception:
            logger.exception("the thread of the heartbeat has failed")
        finally:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        await self._ending.wait()
        left: set[asyncio.Task[Any]] = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for connection in self._connections.values():
            await connection.aclose()
