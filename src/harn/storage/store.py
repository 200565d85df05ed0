"""The store of a runtime: one open engine, and the callers that wait for a topic to grow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from harn.clock import Clock, resolve
from harn.errors import InvalidOption, StorageError
from harn.graceful_stop import parked
from harn.private_files import check_private
from harn.storage.contract import CopyingDriver, Driver, Durability, Hooks, OutboxDriver
from harn.storage.engines import MemoryDriver, open_driver
from harn.storage.operations import Operation, Recipe, ask
from harn.storage.url import StoreUrl, read_url

if TYPE_CHECKING:
    from harn.runtime import Runtime

T = TypeVar("T")

OTHER_COPIES = {
    "memory": "it ends with its process",
    "file": "use `harn log export FILE`",
    "postgresql": "use pg_dump, or `harn log export FILE`",
}
"""How else to copy a store."""
POLL = 0.5
"""Seconds after which a waiting reader looks again, even without a notification."""


class Store:
    """A runtime's store, opened when it is first used: `runtime.service(Store)`."""

    def __init__(self, runtime: Runtime, url: str | None = None) -> None:
        self._runtime = runtime
        self.place: StoreUrl = read_url(runtime.storage_url if url is None else url)
        hooks = Hooks(self._appended, self._hinted, lambda: self._watched > 0)
        _check_safe(self.place, runtime.state_dir)
        clock = partial(getattr, runtime, "clock")  # a fake clock may take its place later
        self.driver: Driver = open_driver(self.place, clock, hooks)
        self._growth: dict[str, int] = {}
        self._hints = 0
        self.awaited: dict[str, list[asyncio.Future[None]]] = {}
        """The topics that callers wait for to grow, with their futures; always the same dict."""
        self._on_hint: dict[Callable[[], object], None] = {}
        self._watched = 0
        self._outbox_id: str | None = None
        """The id that tells this store from a copy of its schema elsewhere."""

    @property
    def durability(self) -> Durability:
        """What a write survives once it has been answered."""
        return self.driver.durability

    @property
    def is_memory(self) -> bool:
        """Whether this store ends with the runtime."""
        return self.place.engine == "memory"

    @property
    def at_once(self) -> int:
        """How many writing transactions can be under way together."""
        return self.driver.at_once

    @property
    def runs_here(self) -> bool:
        """Whether `try_now` can do anything."""
        return self.driver.runs_here

    async def run(
        self, recipe: Recipe[T], *, write: bool = True, durability: Durability | None = None
    ) -> T:
        """Carry the operation that *recipe* makes out, in a transaction of its own.

        Without *write* it must only read. Cancelling before it began means it did not happen;
        afterwards it runs to its end and only the answer is lost.
        """
        self._runtime.check_here()
        if isinstance(self.driver, MemoryDriver):
            return self.driver.run_now(recipe, write=write)
        return await self.driver.submit(recipe, write=write, durability=durability)

    def submit(
        self, recipe: Recipe[T], *, write: bool = True, into: asyncio.Future[T] | None = None
    ) -> asyncio.Future[T]:
        """Hand the operation over and return at once, with the future of its answer."""
        self._runtime.check_here()
        return self.driver.submit(recipe, write=write, into=into)

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry a brief operation that grows no topic out on this thread, if nothing is slow now.

        None means that nothing has happened, and that `submit` is the way.
        """
        return self.driver.try_now(recipe)

    def run_now(self, recipe: Recipe[T]) -> T:
        """Carry the operation out between two awaits; only a memory store can."""
        assert isinstance(self.driver, MemoryDriver)
        return self.driver.run_now(recipe)

    def growth(self, topic: str) -> tuple[int, int]:
        """Return a mark of *topic*; take it before reading and pass it to `grown`."""
        return self._growth.get(topic, 0), self._hints

    async def grown(self, topic: str, since: tuple[int, int], within: float = POLL) -> None:
        """Wait until *topic* may have grown *since*, or half a second has passed.

        Cancelling and a graceful stop leave nothing behind.
        """
        if self.growth(topic) != since:
            return
        clock = self._runtime.clock
        with self.awaiting(topic) as woken:
            wake = partial(resolve, woken)
            timer = clock.call_at(clock.monotonic() + within, wake, background=True)
            self._on_hint[wake] = None
            try:
                with parked(woken):
                    await woken
            finally:
                timer.cancel()
                del self._on_hint[wake]

    @contextmanager
    def awaiting(self, topic: str) -> Iterator[asyncio.Future[None]]:
        """Lend a future that is resolved when *topic* has grown, as far as this is known by name.

        `on_hint` tells that another process wrote to some topic.
        """
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self.awaited.setdefault(topic, [])
        waiting.append(woken)
        self._watch(+1)
        try:
            yield woken
        finally:
            self._watch(-1)
            if woken in waiting:
                waiting.remove(woken)
            if not waiting and self.awaited.get(topic) is waiting:
                del self.awaited[topic]

    def on_hint(self, call: Callable[[], object]) -> None:
        """Make *call* each time another process may have written, until `off_hint`."""
        self._on_hint[call] = None

    def off_hint(self, call: Callable[[], object]) -> None:
        """Make *call* no more."""
        self._on_hint.pop(call, None)

    def mark(self, topics: Sequence[str] = ()) -> object | None:
        """Return what differs after every later write of any process to *topics*, or to anything.

        None means that only a read can tell. Take it before reading: marks that are equal mean
        that nothing is new.
        """
        return self.driver.mark(topics)

    @property
    def tells_marks(self) -> bool:
        """Whether another mark of a topic wakes the callers that wait for the topic to grow."""
        return self.driver.tells_marks

    def touch(self, topic: str) -> None:
        """Wake the callers in this process that wait for *topic* to grow."""
        self._appended(frozenset((topic,)))

    async def check(self) -> list[str]:
        """Look for damage below the records; return what was found.

        Cancelling ends the wait; the look may still go over every page.
        """
        return await self.driver.check()

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy a SQLite store to the new file *path*; see `Runtime.backup`.

        Cancelling before the copy is complete leaves no file behind.
        """
        target = _target(path)
        if not isinstance(self.driver, CopyingDriver):
            raise StorageError(
                f"only a SQLite store is copied by backup, this one is {self.place.engine}://; "
                f"{OTHER_COPIES[self.place.engine]}"
            )
        await self.driver.backup(target)

    @property
    def has_outbox(self) -> bool:
        """Whether jobs can be enqueued in a transaction of the caller's own."""
        return isinstance(self.driver, OutboxDriver)

    async def put_in_outbox(self, connection: object, job: Mapping[str, Any]) -> str:
        """Put a job into the outbox on the caller's own *connection*; return its ticket.

        Cancelling leaves the caller's transaction as its driver does.
        """
        assert isinstance(self.driver, OutboxDriver)
        if self._outbox_id is None:
            self._outbox_id = await self.run(_outbox_id, write=False)
        return await self.driver.put_in_outbox(connection, {"store": self._outbox_id, **job})

    async def aclose(self) -> None:
        """Finish what was handed over and close everything.

        Cancelling ends the wait: what was handed over is carried out, but files or connections may
        stay open.
        """
        await self.driver.aclose()

    def _watch(self, change: int) -> None:
        self._watched += change
        if self._watched and change > 0:
            self.driver.watch(True)

    def _appended(self, topics: frozenset[str]) -> None:
        for topic in topics:
            self._growth[topic] = self._growth.get(topic, 0) + 1
            for woken in self.awaited.pop(topic, ()):
                resolve(woken)

    def _hinted(self) -> None:
        self._hints += 1
        for call in list(self._on_hint):
            call()


def _outbox_id() -> Operation[str]:
    [(id,)] = yield ask("outbox_store")
    return str(id)


class ReopenedStore:
    """The engine of *store* opened again, for a thread that has an event loop of its own.

    What it appends wakes no reader of *store* at once; they find it when they poll.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._memory = store.driver if isinstance(store.driver, MemoryDriver) else None
        hooks = Hooks(lambda _: None, lambda: None)
        self._driver = None if self._memory else open_driver(store.place, lambda: clock, hooks)

    async def run(self, recipe: Recipe[T], *, durability: Durability | None = None) -> T:
        """Carry the operation out. Cancelling may leave it done."""
        if self._driver is None:
            assert self._memory is not None
            return self._memory.run_on_thread(recipe)
        return await self._driver.submit(recipe, durability=durability)

    async def aclose(self) -> None:
        """Close the second engine; a store in memory belongs to its runtime and stays open."""
        if self._driver is not None:
            await self._driver.aclose()


def _target(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path).strip() or "\0" in str(path):
        raise InvalidOption("path", path, "a new file for the copy")
    return Path(os.path.abspath(path))


def _check_safe(place: StoreUrl, state_dir: Path) -> None:
    """Refuse a file or directory that others can write to, or that belongs to another user."""
    if place.engine not in ("sqlite", "file"):
        return
    check_private(place.path, "store", owned=True)
    if place.path.parent == Path(os.path.abspath(state_dir)):
        check_private(place.path.parent, "state directory", owned=True)
