"""A pipeline pool's journal: one thread writes it, and many submits share an fsync.

Lines are appended on the loop and passed to the journal's own thread. It writes all lines that have
collected with one write and one sync, then informs the loop. So the submits of a burst share the
wait for the disk, and each is acknowledged only when its line is on the disk.

A failed write is removed from the file and fails the submits in it. A line about something that has
happened already (a task that ended) is *owed*: it is kept and goes first in the next write. After a
failed sync it is not known what reached the disk, so the journal accepts no more lines until it is
opened again.

The journal does not use `harn/batcher.py`, which runs an operation for callers that wait for it.
Here most lines have no waiting caller, owed lines stay after a failed write, and the thread takes
the next lines without a turn of the loop in between.

Compaction runs beside the writer: another thread folds the file as it is, then the writer adds the
lines that were written since and replaces the file.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harn.clock import Activity, resolve
from harn.errors import StorageError
from harn.pools.journal_file import JournalFile
from harn.pools.journal_records import JournalState, PoolRecord

logger: logging.Logger = logging.getLogger("harn.pools")

COMPACT_LEAST = 100
"""Tasks that must have ended since the last compaction before the next one begins."""

RETRY_AFTER = 1.0
"""Seconds between two attempts to write owed lines, while no new line arrives."""

_numbers = itertools.count(1)
_open: weakref.WeakSet[Journal] = weakref.WeakSet()


class UnwrittenLine:
    """A line that is not yet on the disk, and how many tasks it ends."""

    __slots__ = ("data", "ends", "owed", "ticket")

    def __init__(self, ticket: int, data: bytes, owed: bool, ends: int) -> None:
        self.ticket: int = ticket
        self.data: bytes = data
        self.owed: bool = owed
        self.ends: int = ends


class Journal:
    """An open journal. *keep* returns the retention: how many ended tasks, and since when (ms)."""

    def __init__(
        self,
        path: Path,
        header: PoolRecord,
        *,
        loop: asyncio.AbstractEventLoop,
        activity: Activity,
        keep: Callable[[], tuple[int, int]],
    ) -> None:
        self.path = path
        self.state: JournalState = JournalState()
        """The state that was read from the file, until the pool has restored it."""
        self._header = header
        self._loop = loop
        self._activity = activity
        self._keep = keep
        self._lines: queue.SimpleQueue[list[UnwrittenLine] | Callable[[], None] | None]
        self._lines = queue.SimpleQueue()
        self._gathered: list[UnwrittenLine] = []
        """Lines of this turn of the loop; they go to the thread together at its end."""
        self._unwritten: set[int] = set()
        self._waiters: dict[int, list[asyncio.Future[None]]] = {}
        self._ticket = 0
        self._lost_from: int | None = None
        """Once the journal is broken: the first ticket that never reached the disk."""
        self._broken: str | None = None
        self._opened: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(
            target=self._serve, name=f"harn-journal-{next(_numbers)}", daemon=True
        )
        # Used by the journal's thread only:
        self._file = JournalFile(path)
        self._owed: list[UnwrittenLine] = []
        self._ends = 0
        self._folding: threading.Thread | None = None

    async def open(self) -> None:
        """Lock the file and read it into `state`.

        If it is cancelled, the file is closed before the cancel is raised.
        """
        self._activity.store_began()
        _open.add(self)
        self._thread.start()
        try:
            await asyncio.wait((self._opened,))
        except asyncio.CancelledError:
            await self.aclose()
            if self._opened.done():
                self._opened.exception()
            raise
        finally:
            self._activity.store_ended()
        self._opened.result()

    def append(self, line: bytes, *, owed: bool = False, ends: int = 0) -> int:
        """Pass *line* to the writer and return its ticket; *ends* counts the tasks that it ends.

        A line that is *owed* records something that has happened already.
        """
        return self.reserve(line, owed=owed, ends=ends).ticket

    def reserve(self, data: bytes = b"", *, owed: bool = False, ends: int = 0) -> UnwrittenLine:
        """Pass a line to the writer whose *data* may still be set in this turn of the loop."""
        self._ticket += 1
        line = UnwrittenLine(self._ticket, data, owed, ends)
        if self._broken is None:
            if not self._unwritten:
                self._activity.store_began()
            self._unwritten.add(self._ticket)
            if not self._gathered:
                self._loop.call_soon(self._hand_over)
            self._gathered.append(line)
        return line

    def _hand_over(self) -> None:
        if self._gathered:
            self._lines.put(self._gathered)
            self._gathered = []

    @property
    def last_ticket(self) -> int:
        """The ticket of the newest line."""
        return self._ticket

    def forget_state(self) -> None:
        """Release the memory of `state`, which the pool has restored."""
        self.state = JournalState()

    async def synced(self, ticket: int) -> None:
        """Wait until the line of *ticket* is on the disk; raise `StorageError` if that fails.

        Cancelling does not stop the write.
        """
        if (written := self.written(ticket)) is not None:
            await written

    def written(self, ticket: int) -> asyncio.Future[None] | None:
        """Return a future of the line's write; None if the line of *ticket* is on the disk."""
        if ticket not in self._unwritten:
            if self._lost_from is not None and ticket >= self._lost_from:
                raise StorageError(self._broken)
            return None
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiters = self._waiters.get(ticket)
        if waiters is None:
            self._waiters[ticket] = [waiter]
        else:
            waiters.append(waiter)
        return waiter

    async def aclose(self) -> None:
        """Write all lines, then close the file. A cancel is raised after that."""
        self._stop()
        cancelled = None
        while not self._ended.done():
            try:
                await asyncio.wait((self._ended,))
            except asyncio.CancelledError as error:
                cancelled = error
        self._thread.join()
        if cancelled is not None:
            raise cancelled

    def abandon(self) -> None:
        """Close the file of a pool that is dropped, without the loop; blocks briefly."""
        self._stop()
        self._thread.join()

    def _stop(self) -> None:
        self._hand_over()
        self._lines.put(None)
        _open.discard(self)

    def _answer_waiters(
        self, lines: list[UnwrittenLine], error: BaseException | None, broken: str | None
    ) -> None:
        if broken is not None and self._lost_from is None:
            self._broken, self._lost_from = broken, min(line.ticket for line in lines)
        self._unwritten.difference_update([line.ticket for line in lines])
        waiting = self._waiters
        for line in lines:
            for waiter in waiting.pop(line.ticket, ()):
                if not waiter.done():
                    if error is None:
                        waiter.set_result(None)
                    else:
                        waiter.set_exception(error)
        if lines and not self._unwritten:
            self._activity.store_ended()

    # What follows runs on the journal's thread.

    def _serve(self) -> None:
        try:
            self.state = self._file.open(self._header, self._keep())
        except BaseException as error:
            self._tell(_fail, self._opened, error)
        else:
            self._tell(resolve, self._opened)
            while self._write_what_gathered():
                pass
            if self._owed:
                self._break(
                    self._owed, f"cannot write to {self.path}; the last outcomes were not recorded"
                )
            if self._folding is not None:
                self._folding.join()
            self._file.close()
        self._tell(resolve, self._ended)

    def _write_what_gathered(self) -> bool:
        """Write all lines that wait with one sync; false when the journal is being closed."""
        batch: list[list[UnwrittenLine] | Callable[[], None] | None] = []
        try:
            batch.append(self._lines.get(timeout=RETRY_AFTER if self._owed else None))
        except queue.Empty:
            pass
        while not self._lines.empty():
            batch.append(self._lines.get_nowait())
        lines = self._owed + [line for each in batch if isinstance(each, list) for line in each]
        if lines:
            self._owed = []
            self._commit(lines)
        for command in batch:
            if callable(command):
                command()
        if None in batch:
            return False
        if self._ends >= max(COMPACT_LEAST, self._keep()[0]) and self._folding is None:
            self._begin_compaction()
        return True

    def _commit(self, lines: list[UnwrittenLine]) -> None:
        if self._broken is not None:
            self._tell(self._answer_waiters, lines, StorageError(self._broken), None)
            return
        try:
            self._file.append(b"".join(line.data for line in lines))
        except OSError as error:
            self._write_failed(lines, f"cannot write to {self.path}: {error.strerror}")
            return
        try:
            self._file.sync()
        except OSError as error:
            self._break(lines, f"cannot sync {self.path}: {error.strerror}; reopen the pool")
            return
        self._ends += sum(line.ends for line in lines)
        self._tell(self._answer_waiters, lines, None, None)

    def _write_failed(self, lines: list[UnwrittenLine], message: str) -> None:
        try:
            self._file.cut_back()
        except OSError:
            self._break(lines, f"{message}; reopen the pool")
            return
        self._owed = [line for line in lines if line.owed]
        failed = [line for line in lines if not line.owed]
        self._tell(self._answer_waiters, failed, StorageError(message), None)

    def _break(self, lines: list[UnwrittenLine], message: str) -> None:
        logger.error("%s", message)
        self._broken = message
        self._tell(self._answer_waiters, lines, StorageError(message), message)

    def _begin_compaction(self) -> None:
        self._ends = 0
        self._folding = threading.Thread(
            target=self._fold,
            args=(self._file.end,),
            name=f"{self._thread.name}-compaction",
            daemon=True,
        )
        self._folding.start()

    def _fold(self, size: int) -> None:
        try:
            state = self._file.fold_prefix(size, self._keep())
        except (OSError, StorageError) as error:
            logger.warning("cannot compact %s: %s", self.path, error)
            self._lines.put(lambda: self._swap(None, size))
        else:
            self._lines.put(lambda: self._swap(state, size))

    def _swap(self, state: JournalState | None, size: int) -> None:
        self._folding = None
        if state is not None and self._broken is None:
            try:
                self._file.compact(state, size)
            except OSError as error:
                logger.warning("cannot compact %s: %s", self.path, error)

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:  # the loop has closed: no waiter is left
            pass

    def _forked(self) -> None:
        """In a forked child: close this copy, which must not write."""
        self._broken = f"the journal {self.path} belongs to the parent process"
        self._file.close(forked=True)


def _fail(future: asyncio.Future[None], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _close_in_child() -> None:
    for journal in list(_open):
        journal._forked()
    _open.clear()


os.register_at_fork(after_in_child=_close_in_child)
