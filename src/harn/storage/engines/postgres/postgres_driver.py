"""PostgreSQL, through psycopg and its pool: a few threads, each with one transaction at a time.

Every call is bounded (`statement_timeout`, `lock_timeout`, set inside each transaction where a
pooler such as PgBouncer may lend another session every time), and whatever can be tried again
is: a deadlock, a server that restarts, a connection lost (see `operation_runner.py`).
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from harn.clock import Clock
from harn.errors import StorageError
from harn.masking import mask
from harn.storage.contract import Durability, Hooks
from harn.storage.engines.postgres import outbox_call
from harn.storage.engines.postgres.connections import PostgresServer
from harn.storage.engines.postgres.notify import Listener, Notifier
from harn.storage.engines.postgres.operation_runner import OperationRunner
from harn.storage.engines.store_thread import Handover, Request, start_thread
from harn.storage.operations import Recipe, nothing
from harn.storage.url import StoreUrl

T = TypeVar("T")

POOL_SIZE = 4


class PostgresDriver:
    """One schema of one database, shared with every process that uses it."""

    durability: Durability = "full"
    at_once = 3
    runs_here = False
    tells_marks = True

    def __init__(self, place: StoreUrl, clock: Callable[[], Clock], hooks: Hooks) -> None:
        self.where: str = mask(place.rest)
        self.schema: str = place.options.get("schema", "harn")
        self._busy_ms = place.busy_ms
        self._size = int(place.options.get("pool_size", POOL_SIZE))
        self._clock = clock
        self._handover = Handover(clock, hooks)
        self._server = PostgresServer(
            place.rest, self.where, self.schema, self._size + 1, self._busy_ms
        )
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0
        self._notifier = Notifier(self._server.borrow, self.schema)
        self._listener = Listener(place.rest, self.schema, self._handover, self._server.has_session)
        self._closed = False
        self._forked = False
        _drivers.add(self)

    def submit(
        self,
        recipe: Recipe[T],
        *,
        write: bool = True,
        durability: Durability | None = None,
        into: asyncio.Future[T] | None = None,
    ) -> asyncio.Future[T]:
        """Hand the operation to the next free thread."""
        if self._forked:
            raise StorageError(f"{self.where} was opened before a fork; open a new Runtime there")
        if self._closed:
            raise StorageError(f"{self.where} is closed")
        request = self._handover.request(recipe, "full" if write else "memory", into)
        self._under_way += 1
        request.future.add_done_callback(self._one_less)
        if len(self._threads) < min(self._size, self._under_way):
            self._add_thread()
        self._inbox.put(request)
        return request.future

    def try_now(self, recipe: Recipe[T]) -> T | None:
        """Carry nothing out: every statement waits for the server."""
        return None

    def watch(self, wanted: bool) -> None:
        """Listen on a connection of its own; where that is impossible, polling has to do."""
        self._listener.switch(wanted)

    async def put_in_outbox(self, connection: object, job: Mapping[str, Any]) -> str:
        """Call our SQL function on the caller's connection."""
        return await outbox_call.put(connection, self.schema, job)

    def mark(self, topics: Sequence[str] = ()) -> object | None:
        """Return what the listener has seen of *topics*; None while it does not look at them.

        It looks by real time, so with a fake clock only a read can tell.
        """
        if not topics or self._clock().is_fake:
            return None
        return self._listener.mark(topics)

    async def check(self) -> list[str]:
        """Find nothing: the server looks after its pages."""
        return []

    async def aclose(self) -> None:
        """Finish what was handed over, then close every connection."""
        if self._closed or self._forked:
            return
        self._closed = True
        ended = self._handover.request(nothing, "full")
        try:
            start_thread("harn-pg-closer", self._shut, ended)
        except StorageError:  # the program ends, and its loop has nothing else to do
            self._shut(ended)
        await ended.future
        self._handover.close()

    def _shut(self, ended: Request) -> None:
        for _ in self._threads:
            self._inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._listener.stop()
        self._notifier.stop()
        self._server.close()
        self._handover.deliver([ended])

    def _one_less(self, _: object) -> None:
        self._under_way -= 1

    def _add_thread(self) -> None:
        number = len(self._threads)
        try:
            thread = start_thread(f"harn-pg-{number}", self._serve, f"{uuid.uuid4().hex}-{number}")
        except StorageError:
            if not self._threads:
                raise
        else:  # without it, the other threads take its work
            self._threads.append(thread)

    def _serve(self, producer: str) -> None:
        runner = OperationRunner(self._server, self._notifier, self._clock, producer, self._busy_ms)
        while True:
            try:
                request = self._inbox.get(timeout=runner.patience)
            except queue.Empty:
                runner.let_go()
                continue
            if request is None:
                break
            if request.wanted:
                runner.carry_out(request)
            self._handover.deliver([request])
        runner.let_go()


_drivers: weakref.WeakSet[PostgresDriver] = weakref.WeakSet()
_left_behind: list[object] = []


def _poison_after_fork() -> None:
    for driver in list(_drivers):
        driver._forked = True
        _left_behind.append((driver, driver._server._pool))


os.register_at_fork(after_in_child=_poison_after_fork)
