"""The log in a directory of files: its transactions, under one lock, made true by the journal.

<dir>/lock            held while a transaction is under way; released when its process ends
<dir>/commits.jsonl   the commit journal (see `commit_journal.py`)
<dir>/cursors.json    where consumers stand, as of the journal's start
<dir>/topics/*.jsonl  one file a topic (see `topic_file.py`)
<dir>/*.damaged       damaged bytes that were set aside (see `jsonl.py`)

Opened read-only, nothing of this is made, mended or written: what the journal has and the
topics' files have not is read as if it had been carried over.
"""

from __future__ import annotations

import heapq
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from harn.clock import Clock
from harn.errors import StorageBusy, StorageError
from harn.private_files import make_private_dir, open_private
from harn.storage.engines.file.commit_journal import Commit, CommitJournal, Part
from harn.storage.engines.file.damage_reports import DamageReports, bytes_set_aside
from harn.storage.engines.file.log_statements import LogStatements, Staged
from harn.storage.engines.file.topic_file import RecordLine, write_header, write_line
from harn.storage.engines.file.topic_files import Carry, TopicFiles
from harn.storage.jsonl import Damage, try_lock, unlock, write_whole
from harn.storage.operations import Ask, Rows

logger: logging.Logger = logging.getLogger("harn.storage")

JOURNAL_BYTES = 4 * 1024 * 1024
"""The length at which the journal is emptied."""


class FileLog:
    """The log in a directory; used by one thread, shared with other processes by its lock."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], Clock],
        busy_ms: int,
        *,
        read_only: bool = False,
    ) -> None:
        self.read_only = read_only
        self.directory = directory
        self._clock = clock
        self._busy_ms = busy_ms
        self._journal = CommitJournal(directory, read_only=read_only)
        self._reports = DamageReports(read_only=read_only)
        self._files = TopicFiles(directory / "topics", self._reports, read_only=read_only)
        self.statements: LogStatements = LogStatements(self._files, self.now)
        self._lock = -1
        self._doubtful = False
        self._is_first = True
        self.grown: set[str] | None = None
        """Topics that others wrote to since this was last emptied; None: any of them."""

    # -- transactions ------------------------------------------------------------------------

    def begin(self) -> None:
        """Take the lock and learn what others have done since."""
        self._open()
        self._take_lock()
        try:
            self._catch_up()
        except BaseException:
            self._journal.close()
            self.release()
            raise
        self.statements.staged = Staged()

    def execute(self, asked: Ask) -> Rows | None:
        """Carry one statement of the log out; None if it is not one."""
        if asked.name == "check_files":
            return self._check_files()
        return self.statements.execute(asked)

    def commit(self, *, sync: bool) -> bool:
        """Make what was staged true, then write it to the topics; False if nothing was staged.

        Once the journal has it nothing can fail any more: what could not be written now is
        repeated from the journal before the next transaction looks.
        """
        staged = self.statements.staged
        if self.read_only and staged != Staged():
            raise StorageError(f"{self.directory} is open for reading only; nothing was written")
        commit = self._prepared(staged)
        if commit is None:
            return False
        with self._in_doubt_if_it_fails():
            if self._doubtful:
                self.checkpoint()
            self._journal.add(commit, sync=sync)
        try:
            self._apply(commit, self._files.write)
            self._files.note_heads(staged.rows)
            if self._journal.end > JOURNAL_BYTES:
                self.checkpoint()
        except OSError as error:
            logger.warning("%s: to be repeated from the journal: %s", self.directory, error)
            self._journal.close()
        return True

    def commit_trims(self) -> None:
        """Replace the files of topics that were trimmed, or whose offsets were skipped."""
        staged = self.statements.staged
        skipped = {
            topic: head for topic, head in staged.heads.items() if head > self._files.head(topic)
        }
        try:
            for topic, head in skipped.items():
                self.checkpoint()
                self._files.compact(topic, 0, head)
            for topic, below in staged.trims.items():
                self.checkpoint()
                self._files.compact(topic, below)
        except OSError:
            self._journal.close()
            raise

    def release(self) -> None:
        """Release the lock."""
        if self._lock >= 0:
            unlock(self._lock)

    def close(self) -> None:
        """Close every file."""
        self._journal.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def sync(self) -> None:
        """Sync commits of the weaker class."""
        with self._in_doubt_if_it_fails():
            self._journal.sync_if_open()

    @contextmanager
    def _in_doubt_if_it_fails(self) -> Iterator[None]:
        """After a failed sync, trust no other sync of this journal.

        A commit of the weaker class may be a hole in it. The next commit writes everything once
        more, and starts another journal.
        """
        try:
            yield
        except OSError:
            self._doubtful = True
            self._journal.close()
            raise

    def checkpoint(self) -> None:
        """Sync the topics' files and empty the journal.

        After a failed sync the kernel may have dropped what it could not write and call the
        file clean; so a caller that fails here closes the journal, and everything is written again.
        """
        self._files.sync()
        write_whole(self.directory / "cursors.json", _cursors_as_json(self.statements.cursors))
        self._journal.start_again()
        self._files.unsynced.clear()
        self._doubtful = False

    def now(self) -> int:
        """Return the store's time, never behind what any commit has said."""
        clock = self._clock()
        ms = clock.now_ms()
        return ms if clock.is_fake else max(ms, self._journal.ms)

    def in_order(self, after: dict[str, int]) -> Iterator[tuple[str, RecordLine]]:
        """Yield the records of the topics in *after*, each after its offset, as they were made."""

        def of(topic: str, seen: int) -> Iterator[tuple[int, str, RecordLine]]:
            for line in self._files.lines(topic, seen):
                if isinstance(line, RecordLine):
                    yield line.seq, topic, line

        for _, topic, line in heapq.merge(*(of(t, n) for t, n in sorted(after.items()))):
            yield topic, line

    def _prepared(self, staged: Staged) -> Commit | None:
        """Return what was *staged* as a commit for the journal; None if there is nothing."""
        if not staged.rows and not staged.cursors and not staged.heads:
            return None
        seq = self._journal.seq
        written: dict[str, list[bytes]] = {}
        for topic, id, kind, payload, headers, at in staged.rows:
            seq += 1
            line = write_line(id, seq, kind, payload, headers, at)
            written.setdefault(topic, []).append(line)
        parts = []
        for topic in sorted({*written, *staged.heads}):
            at = self._files.end(topic)
            given = staged.heads.get(topic, 0)
            lines = written.get(topic, [])
            if at == 0:
                lines.insert(0, write_header(topic, 0 if written.get(topic) else given))
            if lines:
                parts.append(Part(topic, at, b"".join(lines)))
        cursors = [(t, c, position) for (t, c), position in staged.cursors.items()]
        ms = self._journal.ms if self._clock().is_fake else self.now()
        return Commit(seq, ms, parts, cursors)

    def _apply(self, commit: Commit, carry: Carry) -> None:
        """Bring *commit* into the topics' files, then move the cursors."""
        self._files.take(commit.parts, carry, is_damaged=commit.is_damaged)
        cursors = self.statements.cursors
        for topic, consumer, position in commit.cursors:
            if position is None:
                cursors.pop((topic, consumer), None)
            else:
                cursors[topic, consumer] = position

    # -- the lock, and what other processes did ------------------------------------------------

    def _open(self) -> None:
        if self._lock >= 0:
            return
        path = self.directory / "lock"
        if not self.read_only:
            make_private_dir(self._files.directory)
            self._lock = open_private(path, os.O_RDWR | os.O_CREAT)
        elif path.exists():
            self._lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    def _take_lock(self) -> None:
        pause, waited = 0.0005, 0.0
        while self._lock >= 0:
            if try_lock(self._lock):
                return
            if waited * 1000 > self._busy_ms:
                raise StorageBusy(f"{self.directory} is locked by another process; try again")
            threading.Event().wait(pause)
            waited += pause
            pause = min(pause * 1.5, 0.02)

    def _catch_up(self) -> None:
        again = self._journal.is_replaced()
        if again:
            self._start_over()
        carry = self._files.carry_again if again else self._files.carry_over
        found: list[Damage] = []
        for news in self._journal.news():
            if isinstance(news, Damage):
                found.append(news)
                continue
            self._apply(news, carry)
            if self.grown is not None:
                self.grown.update(part.topic for part in news.parts)
        if found:
            self._reports.add(self._journal.path, found)
        is_damaged = bool(found) or self._journal.is_headless
        if self._is_first or is_damaged:
            # A copy may have taken the journal before the topics, and a journal may be damaged or
            # lost: records are numbered after all that the topics hold.
            self._journal.seq = max(self._journal.seq, self._files.read_heads())
        if not self.read_only and (self._files.is_irregular or is_damaged):
            self._files.unsynced.update(self.statements.names())
            self.checkpoint()
            self._files.is_irregular = False
        self._is_first = False

    def _start_over(self) -> None:
        self._journal.open()
        self._files.forget()
        self.statements.cursors = self._read_cursors()
        self.grown = None

    def _read_cursors(self) -> dict[tuple[str, str], int]:
        path = self.directory / "cursors.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            found = msgspec.json.decode(data, type=list[tuple[str, str, int]])
        except ValueError as error:
            reason = f"consumers start from the beginning: {error}"
            self._reports.add(path, [Damage(0, reason, data)])
            self._files.is_irregular = True
            return {}
        return {(topic, consumer): place for topic, consumer, place in found}

    def _check_files(self) -> Rows:
        """Return a row for each thing that is damaged below the records."""
        topics = [self._files.path(topic) for topic in self.statements.names()]
        paths = [self._journal.path, self.directory / "cursors.json", *topics]
        headers = self._files.damaged_headers()
        return [(text,) for text in (*self._reports.listed(), *headers, *bytes_set_aside(paths))]


def _cursors_as_json(cursors: dict[tuple[str, str], int]) -> bytes:
    return msgspec.json.encode([(t, c, place) for (t, c), place in sorted(cursors.items())])
