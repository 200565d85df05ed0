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

from harn.storage.handover import Handover
from harn.storage.queries import load_queries

logger = logging.getLogger("harn.storage")

GAP = 0.01
NOTIFY_MS = 2000
"""Milliseconds after which a notification is given up."""
PAUSE = 0.5
"""Seconds before a lost LISTEN connection is tried again."""


def channel_of(schema: str) -> str:
    """Return the channel on which a schema's topics are told."""
    return f"harn_{schema}"


class Notifier:
    """Tells which topics have grown, after their commit.

    The first news goes out at once; what comes within `GAP` seconds of it is told together, so
    that a busy writer does not spend its time on telling.
    """

    def __init__(
        self, use: Callable[[], AbstractContextManager[psycopg.Connection[Any]]], schema: str
    ) -> None:
        self._use = use
        self._channel = channel_of(schema)
        self._inbox: queue.SimpleQueue[set[str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def tell(self, topics: set[str]) -> None:
        """Have *topics* told soon."""
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

    def _serve(self) -> None:
        text = load_queries("postgres")["notify"].text
        last = False
        while not last:
            met = [self._inbox.get()]
            while not self._inbox.empty():
                met.append(self._inbox.get())
            last = None in met
            topics = set().union(*(item for item in met if item))
            try:
                with self._use() as connection:
                    params = {
                        "channel": self._channel,
                        "topics": sorted(topics),
                        "statement_ms": str(NOTIFY_MS),
                    }
                    psycopg.ClientCursor(connection).execute(text, params)
            except psycopg.Error as error:
                logger.debug("no notification: %s", error)
            self._stopping.wait(GAP)


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
            connection.execute(f'LISTEN "{self._channel}"')
            self._handover.hint()  # what came while nobody listened
            while not self._stopped.is_set():
                for heard in connection.notifies(timeout=30, stop_after=1):
                    self._handover.grown(heard.payload)
        finally:
            with self._lock:
                self._socket.close()
                self._socket = None
