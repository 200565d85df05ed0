"""PostgreSQL's NOTIFY as a hint that topics have new records.

It is sent in a transaction of its own and received on a connection of its own. Nothing depends on
it: if a notification is lost, or a pooler does not support LISTEN, readers find the records when
they poll.
"""

from __future__ import annotations

import logging
import os
import queue
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from harn.clock import SystemClock
from harn.errors import StorageError
from harn.storage.engines.postgres.arrays import encode_texts
from harn.storage.engines.postgres.connecting import connect_options
from harn.storage.engines.postgres.connections import Borrowed, pipeline_of
from harn.storage.engines.postgres.libpq_pipeline import Pipeline, Statement
from harn.storage.engines.postgres.newest_offsets import TopicLooks
from harn.storage.engines.store_thread import Handover, start_thread
from harn.storage.queries import load_queries
from harn.topics import by_others

logger: logging.Logger = logging.getLogger("harn.storage")

GAP = 0.01
"""Seconds after a notification in which the next one is sent, if something was committed since."""
NEXT = 0.005
"""Seconds after a notification from which a commit brings the next one itself."""
LONGEST = 30.0
"""Seconds that the listener waits at most."""
PAUSE = 0.5
"""Seconds before the listener connects again after an error."""


def channel_of(schema: str) -> str:
    """Return the channel for notifications about the topics of *schema*."""
    return f"harn_{schema}"


class Notifier:
    """Notifies other processes of topics that have new records, after their commit.

    A notification is sent in one round trip with the commit, unless there was one within `NEXT`
    seconds. What is left out is sent with a later commit. If none comes, a thread sends it when
    the last notification is `GAP` seconds ago.
    """

    def __init__(self, borrow: Callable[[], Borrowed], schema: str) -> None:
        self._borrow = borrow
        self._channel = channel_of(schema)
        self._text = load_queries("postgres")["notify"].text
        self._inbox: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Has an item when something is to be sent in time; it tells whether that is the last."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._left: set[str] = set()
        self._is_called = False
        """Whether the thread will look at what is left."""
        self._told_at = 0.0

    def at_once(self, topics: set[str]) -> list[Statement]:
        """Return the statement to send behind the commit; none within `NEXT` of the last one.

        Without a statement, call `tell` after the commit.
        """
        with self._lock:
            now = SystemClock.monotonic()
            if not topics or now < self._told_at + NEXT:
                return []
            self._told_at = now
            topics, self._left = self._left | topics, set()
        return [self._statement(topics)]

    def tell(self, topics: set[str]) -> None:
        """Notify others of *topics* soon, with another commit or on the notifier's thread."""
        with self._lock:  # several threads may call this; only one of them starts the thread
            self._left |= topics
            if self._is_called or not topics:
                return
            self._is_called = True
            if self._thread is None:
                self._thread = _started(self._serve, "harn-pg-notifier")
        self._inbox.put(False)

    def stop(self) -> None:
        """Send what is left, then end the thread."""
        if self._thread is not None:
            self._stopping.set()
            self._inbox.put(True)
            self._thread.join()

    def _statement(self, topics: set[str]) -> Statement:
        return self._text, {"channel": self._channel, "topics": encode_texts(sorted(topics))}

    def _serve(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._inbox.get()
            self._wait()
            if topics := self._take():
                self._tell(topics)

    def _wait(self) -> None:
        """Wait until the last notification is `GAP` seconds ago; a commit may bring another one."""
        while (left := self._told_at + GAP - SystemClock.monotonic()) > 0 and self._left:
            if self._stopping.wait(left):
                return

    def _take(self) -> set[str]:
        with self._lock:
            self._is_called = False
            topics, self._left = self._left, set()
            if topics:
                self._told_at = SystemClock.monotonic()
            return topics

    def _tell(self, topics: set[str]) -> None:
        try:
            borrowed = self._borrow()
            try:
                pipeline_of(borrowed.connection).run([self._statement(topics)])
            finally:
                borrowed.release()
        except psycopg.Error as error:
            logger.debug("a notification was not sent: %s", error)


class Listener:
    """Receives notifications of topics that have new records, on a thread of its own.

    It ignores a notification whose sender's server process *is_ours*: this process wakes its own
    readers when it commits.
    """

    def __init__(
        self, dsn: str, schema: str, handover: Handover, is_ours: Callable[[int], bool]
    ) -> None:
        self._dsn = dsn
        self._channel = channel_of(schema)
        self._look_text = load_queries("postgres")["look_at_topics"].text.format(schema=schema)
        self._looks = TopicLooks()
        self._bell: tuple[socket.socket, socket.socket] | None = None
        """Wakes the thread: what is sent into the first is received from the second."""
        self._handover = handover
        self._is_ours = is_ours
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def switch(self, wanted: bool) -> None:
        """Start to listen if that is *wanted*; the listener then runs until `stop`."""
        if wanted and self._thread is None:
            self._bell = socket.socketpair()
            self._thread = _started(self._serve, "harn-pg-listener")

    def mark(self, topics: Sequence[str]) -> object | None:
        """Return what differs after every later write to *topics*; None if that is not known.

        A new mark also wakes the callers that wait for the topics to grow, and so does the loss of
        the connection.
        """
        found, is_new = self._looks.mark(topics)
        if is_new and self._bell is not None:
            self._bell[0].send(b"!")
        return found

    def stop(self) -> None:
        """End the thread and its connection."""
        self._stopped.set()
        with self._lock:
            if self._socket is not None:
                # The thread waits inside libpq; only the end of its socket wakes it at once.
                try:
                    self._socket.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        if self._thread is not None:
            self._thread.join()
        for end in self._bell or ():
            end.close()

    def _serve(self) -> None:
        while not self._stopped.is_set():
            try:
                with psycopg.connect(self._dsn, **connect_options(self._dsn)) as connection:
                    self._hear(connection)
            except (psycopg.Error, OSError) as error:
                logger.debug("the listener's connection failed: %s", error)
            self._stopped.wait(PAUSE)

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        with self._lock:
            self._socket = socket.socket(fileno=os.dup(connection.fileno()))
        try:
            connection.execute(
                load_queries("postgres")["listen"].text.format(channel=self._channel)
            )
            self._handover.hint()  # topics may have grown before LISTEN began
            with selectors.DefaultSelector() as selector:
                selector.register(connection, selectors.EVENT_READ)
                assert self._bell is not None
                selector.register(self._bell[1], selectors.EVENT_READ, "bell")
                statements = Pipeline(connection, is_own=False)
                # psycopg's own wait wakes ten times a second; an idle process has to cost less.
                while not self._stopped.is_set():
                    self._wait(selector)
                    self._look(statements)
                    connection.pgconn.consume_input()
                    while (heard := connection.pgconn.notifies()) is not None:
                        self._heard(heard.be_pid, heard.extra.decode())
        finally:
            self._looks.stop()
            self._handover.hint()  # from now on each reader has to look by itself
            with self._lock:
                self._socket.close()
                self._socket = None

    def _wait(self, selector: selectors.BaseSelector) -> None:
        """Wait for a notification, for a new topic to look at, or until a look is due."""
        until = self._looks.wait()
        for key, _ in selector.select(timeout=LONGEST if until is None else until):
            if key.data == "bell":
                assert self._bell is not None
                self._bell[1].recv(1024)

    def _look(self, statements: Pipeline) -> None:
        """Look at the topics whose readers count on it, if it is time."""
        if self._looks.wait() or not (topics := self._looks.due()):
            return
        [result] = statements.run([(self._look_text, {"topics": encode_texts(topics)})])
        heads: dict[str, int] = dict(statements.rows(result))
        for topic in self._looks.saw(topics, heads):
            self._looks.heard()
            self._handover.grown(by_others(topic))

    def _heard(self, pid: int, payload: str) -> None:
        if self._is_ours(pid):
            return
        self._looks.heard()
        if payload:
            self._handover.grown(payload, by_others(payload))
        else:  # the outbox of a queue whose topic SQL does not know
            self._handover.hint()


def _started(serve: Callable[[], None], name: str) -> threading.Thread | None:
    """Start a thread; None if the program ends: readers then find what is new when they poll."""
    try:
        return start_thread(name, serve)
    except StorageError:
        return None
