"""PostgreSQL's NOTIFY as a wake-up hint: told in a transaction of its own, heard on a connection
of its own.

Nothing depends on either. A notification that is lost, or a pooler that knows no LISTEN, costs a
reader the time until it polls.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg

from harn.clock import SystemClock
from harn.storage.engines.postgres.arrays import encode_texts
from harn.storage.engines.postgres.connections import pipeline_of
from harn.storage.engines.postgres.pipeline import Statement
from harn.storage.engines.store_thread import Handover
from harn.storage.queries import load_queries

logger = logging.getLogger("harn.storage")

GAP = 0.01
"""Seconds between two notifications of one process, at least."""
PAUSE = 0.5
"""Seconds before a lost LISTEN connection is tried again."""


def channel_of(schema: str) -> str:
    """Return the channel on which a schema's topics are told."""
    return f"harn_{schema}"


class Notifier:
    """Tells which topics have grown, after their commit.

    The first news goes out along with the commit; what comes within `GAP` seconds of it is told
    together, by a thread, so that a busy writer does not spend its time on telling.
    """

    def __init__(
        self, use: Callable[[], AbstractContextManager[psycopg.Connection[Any]]], schema: str
    ) -> None:
        self._use = use
        self._channel = channel_of(schema)
        self._text = load_queries("postgres")["notify"].text
        self._inbox: queue.SimpleQueue[set[str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._quiet_until = 0.0

    def at_once(self, topics: set[str]) -> list[Statement]:
        """Return what tells *topics* if it is sent behind their commit; nothing if it is too soon.

        Then `tell` them when they are committed.
        """
        with self._lock:
            now = SystemClock().monotonic()
            if not topics or now < self._quiet_until:
                return []
            self._quiet_until = now + GAP
        return [self._statement(topics)]

    def tell(self, topics: set[str]) -> None:
        """Have *topics* told soon."""
        with self._lock:  # several threads tell, and one is enough to serve them
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="harn-pg-notifier", daemon=True
                )
                self._thread.start()
        self._inbox.put(topics)

    def stop(self) -> None:
        """Tell what is left, then end."""
        if self._thread is not None:
            self._stopping.set()
            self._inbox.put(None)
            self._thread.join()

    def _statement(self, topics: set[str]) -> Statement:
        return self._text, {"channel": self._channel, "topics": encode_texts(sorted(topics))}

    def _serve(self) -> None:
        last = False
        while not last:
            met = [self._inbox.get()]
            self._stopping.wait(max(0.0, self._quiet_until - SystemClock().monotonic()))
            while not self._inbox.empty():
                met.append(self._inbox.get())
            last = None in met
            with self._lock:
                self._quiet_until = SystemClock().monotonic() + GAP
            if topics := set().union(*(item for item in met if item)):
                self._tell(topics)

    def _tell(self, topics: set[str]) -> None:
        try:
            with self._use() as connection:
                pipeline_of(connection).run([], [self._statement(topics)])
        except psycopg.Error as error:
            logger.debug("no notification: %s", error)


class Listener:
    """Hears which topics have grown, in a thread of its own."""

    def __init__(self, dsn: str, schema: str, handover: Handover) -> None:
        self._dsn = dsn
        self._channel = channel_of(schema)
        self._handover = handover
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def switch(self, wanted: bool) -> None:
        """Begin listening; once begun it goes on until `stop`."""
        if wanted and self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="harn-pg-listener", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End the thread, cutting its connection."""
        self._stopped.set()
        with self._lock:
            if self._socket is not None:
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=5) as connection:
                    self._hear(connection)
            except (psycopg.Error, OSError) as error:
                logger.debug("not listening: %s", error)
            self._stopped.wait(PAUSE)

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        try:
            connection.execute(
                load_queries("postgres")["listen"].text.format(channel=self._channel)
            )
            self._handover.hint()  # topics may have grown before LISTEN began
            while not self._stopped.is_set():
                for heard in connection.notifies(timeout=30, stop_after=1):
                    self._handover.grown(heard.payload)
        finally:
            with self._lock:
                self._socket.close()
                self._socket = None
