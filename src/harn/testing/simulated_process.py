"""A process of a simulation: a runtime whose clock and store connection can be disturbed.

All processes live on one virtual-time loop and share one store in memory. An operation takes some
virtual time to reach the store, and its answer some more. A paused process notices nothing until it
continues: its timers fire late and its operations start late. A slow one waits longer for both. A
killed one reaches the store no more; what it had sent before is still carried out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from harn.clock import Activity, Clock, Timer
from harn.errors import StorageError
from harn.runtime import Runtime
from harn.storage import Durability, Recipe, Store
from harn.storage.contract import Hooks
from harn.storage.engines import MemoryDriver
from harn.storage.url import StoreUrl

T = TypeVar("T")

FASTEST, SLOWEST = 0.0005, 0.005
"""Seconds that an operation, or its answer, is on its way."""


class SharedStore:
    """One store in memory, and the processes that are connected to it."""

    def __init__(self, clock: Clock) -> None:
        hooks = Hooks(self._appended, lambda: None)
        self._engine = MemoryDriver(lambda: clock, hooks)
        self._processes: list[SimulatedProcess] = []
        self._topics: frozenset[str] = frozenset()

    def connect(self, process: SimulatedProcess) -> None:
        """Let *process* hear of what others append."""
        self._processes.append(process)

    def disconnect(self, process: SimulatedProcess) -> None:
        """Let *process* hear no more."""
        if process in self._processes:
            self._processes.remove(process)

    def carry_out(self, recipe: Recipe[T], write: bool, by: SimulatedProcess) -> T:
        """Carry an operation of a process out; tell the others if a topic has grown."""
        self._topics = frozenset()
        result = self._engine.run_now(recipe, write=write)
        if self._topics:
            by.appended(sorted(self._topics))  # sorted: a set's order differs between runs
            for other in self._processes:
                if other is not by:
                    other.hint()
        return result

    def _appended(self, topics: frozenset[str]) -> None:
        self._topics = topics


class SimulatedProcess:
    """One process, from its start to its end or kill."""

    def __init__(self, name: str, shared: SharedStore, seed: str) -> None:
        self.name = name
        self.slowness: float = 1.0
        self.is_dead: bool = False
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.shared = shared
        self.random: random.Random = random.Random(seed)  # noqa: S311 - faults, not secrets
        self.runtime: Runtime = SimulatedRuntime(self, seed)
        self._store: SimulatedStore | None = None
        self._is_paused = False
        self._missed: list[Callable[[], object]] = []
        self._last = 0.0
        shared.connect(self)

    # -- what disturbs it ------------------------------------------------------------------------

    def pause(self) -> None:
        """Let nothing happen in it."""
        self._is_paused = True

    def resume(self) -> None:
        """Let everything happen that it has missed, in order."""
        self._is_paused = False
        missed, self._missed = self._missed, []
        for call in missed:
            self.loop.call_soon(self.happen, call)

    def kill(self) -> None:
        """Cut it off from the store, forever."""
        self.is_dead = True
        self.shared.disconnect(self)
        self.resume()

    # -- what it does ----------------------------------------------------------------------------

    def happen(self, call: Callable[[], object]) -> None:
        """Make *call*, or note that it was missed."""
        if self._is_paused:
            self._missed.append(call)
        else:
            call()

    def later(self, seconds: float, call: Callable[[], object]) -> asyncio.TimerHandle:
        """Make *call* after so many seconds, or more if it is slow or paused."""
        return self.loop.call_later(seconds * self.slowness, self.happen, call)

    def travel(self) -> float:
        """Return how long an operation is on its way; none overtakes another."""
        now = self.loop.time()
        arrival = max(now + self.random.uniform(FASTEST, SLOWEST), self._last + 1e-6)
        self._last = arrival
        return arrival - now

    def appended(self, topics: list[str]) -> None:
        """Wake the readers of topics that it has let grow."""
        for topic in topics:
            if self._store is not None:
                self._store.has_grown(topic)

    def hint(self) -> None:
        """Hear that another process has written something."""
        self.later(self.random.uniform(FASTEST, SLOWEST), self._hear)

    def _hear(self) -> None:
        if self._store is not None and not self.is_dead:
            self._store.hear()

    def make_store(self, runtime: Runtime) -> SimulatedStore:
        """Connect its runtime to the store."""
        self._store = SimulatedStore(runtime, self)
        return self._store


class SimulatedRuntime(Runtime):
    """A runtime whose store is the one that all processes share."""

    def __init__(self, process: SimulatedProcess, seed: str) -> None:
        super().__init__(clock=ProcessClock(process), seed=seed, storage="memory://")
        self._process = process

    def _make(self, kind: type[T]) -> T:
        if kind is Store and Store not in self._services:
            self._services[Store] = self._process.make_store(self)
        return super()._make(kind)


class SimulatedStore(Store):
    """A connection to the shared store, as a runtime uses it."""

    def __init__(self, runtime: Runtime, process: SimulatedProcess) -> None:
        super().__init__(runtime)
        # Not "memory": such a store has one runtime, and is written to without waiting.
        self.place: StoreUrl = StoreUrl("sqlite", "simulated", {})
        self.driver: Any = SimulatedConnection(process)

    def has_grown(self, topic: str) -> None:
        """Wake the readers of *topic*."""
        self._appended(frozenset((topic,)))

    def hear(self) -> None:
        """Wake all readers: another process has written."""
        self._hinted()


class SimulatedConnection:
    """Sends operations to the shared store, and answers back, through virtual time."""

    durability: Durability = "memory"
    at_once = 1
    runs_here = False
    tells_marks = False

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process

    def submit(
        self,
        recipe: Recipe[T],
        *,
        write: bool = True,
        durability: Durability | None = None,
        into: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Send an operation; it is carried out unless its future is cancelled before."""
        process = self._process
        answer = process.loop.create_future() if into is None else into
        if process.is_dead:
            answer.set_exception(StorageError("this process was killed"))
        else:
            process.later(process.travel(), partial(self._arrive, recipe, write, answer))
        return answer

    def _arrive(self, recipe: Recipe[T], write: bool, answer: asyncio.Future[T]) -> None:
        process = self._process
        if answer.cancelled():
            return
        if process.is_dead:
            _fail(answer, StorageError("this process was killed"))
            return
        try:
            result = process.shared.carry_out(recipe, write, process)
        except Exception as error:
            process.later(FASTEST, partial(_fail, answer, error))
        else:
            process.later(process.random.uniform(FASTEST, SLOWEST), partial(_tell, answer, result))

    def mark(self, topics: Sequence[str] = ()) -> object | None:
        """Return None: only a read can tell."""
        return None

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Do nothing: every operation travels."""
        return None

    def watch(self, wanted: bool) -> None:
        """Do nothing: hints always come."""

    async def check(self) -> list[str]:
        """Find nothing."""
        return []

    async def aclose(self) -> None:
        """Disconnect; the store stays."""
        self._process.shared.disconnect(self._process)


def _tell(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


class ProcessClock:
    """The time of the simulation, as one process sees it: its timers may fire late."""

    is_fake = True

    def __init__(self, process: SimulatedProcess) -> None:
        self._process = process
        loop: Any = process.loop
        self._clock: Clock = loop.harn_clock
        self.activity: Activity = self._clock.activity

    def now_ms(self) -> int:
        """Return the wall time."""
        return self._clock.now_ms()

    def monotonic(self) -> float:
        """Return the loop's time."""
        return self._clock.monotonic()

    def call_at(
        self, when: float, wake: Callable[[], object], *, background: bool = False
    ) -> Timer:
        """Call *wake* at *when*, or later."""
        timer = _ProcessTimer(wake)
        delay = max(0.0, when - self.monotonic())
        timer.handle = self._process.later(delay, timer.fire)
        if background:
            self.activity.idle_timers.add(timer.handle)
        return timer


class _ProcessTimer:
    """A timer that can be cancelled also while its process is paused."""

    handle: asyncio.TimerHandle

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake: Callable[[], object] | None = wake

    def fire(self) -> None:
        if self._wake is not None:
            self._wake()

    def cancel(self) -> None:
        self._wake = None
        self.handle.cancel()
