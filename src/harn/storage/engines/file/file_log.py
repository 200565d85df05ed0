"""The log's statements carried out on a directory of JSONL files, instead of by SQL.

<dir>/lock            held while a transaction is under way; dies with its holder
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
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harn.clock import Clock
from harn.errors import StorageBusy, StorageError
from harn.private_files import make_private_dir, open_private, sync_dir
from harn.storage.engines.file.commit_journal import Commit, Journal, Part
from harn.storage.engines.file.commit_recovery import by_id, fits, mended, torn_tail
from harn.storage.engines.file.topic_file import Broken, Line, TopicFile, write_header, write_line
from harn.storage.jsonl import (
    Damage,
    close_line,
    count_aside,
    is_sealed,
    set_aside,
    try_lock,
    unlock,
    write_all,
    write_whole,
)
from harn.storage.operations import Ask, Row, Rows

logger = logging.getLogger("harn.storage")

JOURNAL_BYTES = 4 * 1024 * 1024


@dataclass
class Staged:
    """What an open transaction wants to become true."""

    rows: list[Row] = field(default_factory=list)
    heads: dict[str, int] = field(default_factory=dict)
    cursors: dict[tuple[str, str], int | None] = field(default_factory=dict)
    trims: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Staged:
        """Return a savepoint."""
        return Staged(list(self.rows), dict(self.heads), dict(self.cursors), dict(self.trims))

    def rewrites(self, before: Staged) -> bool:
        """Tell whether, since *before*, something asks for more than appending."""
        newest = {row[0]: row[1] for row in self.rows}
        skips = any(newest.get(topic, 0) < head for topic, head in self.heads.items())
        return self.trims != before.trims or (skips and self.heads != before.heads)


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
        self.topics = directory / "topics"
        self.staged = Staged()
        self._clock = clock
        self._busy_ms = busy_ms
        self._journal = Journal(directory, read_only=read_only)
        self._lock = -1
        self._heads: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._places: dict[str, tuple[int, int, int]] = {}
        self._cursors: dict[tuple[str, str], int] = {}
        self._unsynced: set[str] = set()
        self._overlay: dict[str, list[tuple[int, bytes]]] = {}
        self._doubtful = False
        self._irregular = False
        self._is_first = True
        self._reports: dict[str, None] = {}
        self.grown: set[str] | None = None
        """Topics that others wrote to since this was last emptied; None: any of them."""
        self._statements: dict[str, Callable[..., Rows]] = {
            "take_offsets": self._take_offsets,
            "read_events": self._read_events,
            "read_records": self._read_records,
            "topic_head": self._topic_head,
            "list_topics": self._list_topics,
            "topic_extent": self._topic_extent,
            "first_offset": self._first_offset,
            "first_offset_since": self._first_offset_since,
            "trim_events": self._trim_events,
            "raise_head": self._raise_head,
            "note_size": lambda **_: [],
            "move_cursor": self._move_cursor,
            "read_cursor": self._read_cursor,
            "lowest_cursor": self._lowest_cursor,
            "drop_cursor": self._drop_cursor,
            "list_cursors": self._list_cursors,
            "freeze": list,
            "now": lambda: [(self.now(),)],
            "check_files": self._check_files,
        }

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
        self.staged = Staged()

    def commit(self, *, sync: bool) -> bool:
        """Make what was staged true, then carry it over; False if nothing was staged.

        Once the journal has it nothing can fail any more: what could not be carried over now is
        repeated from the journal before anybody looks.
        """
        if self.read_only and self.staged != Staged():
            raise StorageError(f"{self.directory} is open for reading only; nothing was written")
        commit = self._prepared()
        if commit is None:
            return False
        with self._in_doubt_if_it_fails():
            if self._doubtful:
                self.checkpoint()
            self._journal.add(commit, sync=sync)
        try:
            self._apply(commit, self._write)
            for topic, id, *_ in self.staged.rows:
                self._heads[topic] = id
            if self._journal.end > JOURNAL_BYTES:
                self.checkpoint()
        except OSError as error:
            logger.warning("%s: to be repeated from the journal: %s", self.directory, error)
            self._journal.close()
        return True

    def commit_trims(self) -> None:
        """Write anew the files of topics that were trimmed, or whose offsets were skipped."""
        skipped = {
            topic: head
            for topic, head in self.staged.heads.items()
            if head > self._head_on_disk(topic)
        }
        try:
            for topic, head in skipped.items():
                self._compact(topic, 0, head)
            for topic, below in self.staged.trims.items():
                self._compact(topic, below)
        except OSError:
            self._journal.close()
            raise

    def release(self) -> None:
        """Give the lock back."""
        if self._lock >= 0:
            unlock(self._lock)

    def close(self) -> None:
        """Let go of every file."""
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
        """After a failed sync, believe no other of this journal: a commit of the weaker class may
        be a hole in it. The next commit writes it all once more, and starts another journal.
        """
        try:
            yield
        except OSError:
            self._doubtful = True
            self._journal.close()
            raise

    def checkpoint(self) -> None:
        """Sync the topics' files and start the journal anew.

        After a failed sync the kernel may have dropped what it could not write and call the
        file clean; so whoever fails here closes the journal, and everything is written again.
        """
        for topic in sorted(self._unsynced):
            _sync_file(self._path(topic))
        sync_dir(self.topics)
        write_whole(self.directory / "cursors.json", _cursors_as_json(self._cursors))
        self._journal.start_again()
        self._unsynced.clear()
        self._doubtful = False

    def now(self) -> int:
        """Return the store's time, never behind what any commit has said."""
        clock = self._clock()
        ms = clock.now_ms()
        return ms if clock.is_fake else max(ms, self._journal.ms)

    def execute(self, asked: Ask) -> Rows | None:
        """Carry one statement of the log out; None if it is not one."""
        if asked.name == "insert_events":
            assert asked.rows is not None
            self.staged.rows.extend(asked.rows)
            return []
        statement = self._statements.get(asked.name)
        return None if statement is None else statement(**asked.params)

    def in_order(self, after: dict[str, int]) -> Iterator[tuple[str, Line]]:
        """Yield the records of the topics in *after*, each after its offset, as they were made."""

        def of(topic: str, seen: int) -> Iterator[tuple[int, str, Line]]:
            for line in self._lines(topic, seen, staged=False):
                if isinstance(line, Line):
                    yield line.seq, topic, line

        for _, topic, line in heapq.merge(*(of(t, n) for t, n in sorted(after.items()))):
            yield topic, line

    def names(self) -> list[str]:
        """Return every topic."""
        found = {name.name.removesuffix(".jsonl") for name in self.topics.glob("*.jsonl")}
        return sorted(found | set(self.staged.heads) | set(self._overlay))

    # -- the journal and the files -------------------------------------------------------------

    def _open(self) -> None:
        if self._lock >= 0:
            return
        path = self.directory / "lock"
        if not self.read_only:
            make_private_dir(self.topics)
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
        found: list[Damage] = []
        for news in self._journal.news():
            if isinstance(news, Damage):
                found.append(news)
                continue
            self._apply(news, self._carry_again if again else self._carry_over)
            if self.grown is not None:
                self.grown.update(part.topic for part in news.parts)
        if found:
            self._report(self._journal.path, found)
        if self._is_first or found or self._journal.is_headless:
            self._count_on_from_topics()
        if not self.read_only and (self._irregular or found or self._journal.is_headless):
            self._unsynced.update(self.names())
            self.checkpoint()
            self._irregular = False
        self._is_first = False

    def _start_over(self) -> None:
        self._journal.open()
        self._heads.clear()
        self._ends.clear()
        self._places.clear()
        self._unsynced.clear()
        self._overlay.clear()
        self._irregular = False
        self._cursors = self._read_cursors()
        self.grown = None

    def _count_on_from_topics(self) -> None:
        """Number records after all that the topics hold, though the journal does not know them.

        So it is when a copy took the journal first, or the journal was damaged or lost.
        """
        for topic in self.names():
            source = self._file(topic)
            if source is not None:
                self._heads[topic], seq = source.newest()
                self._journal.seq = max(self._journal.seq, seq)
                source.close()

    def _report(self, path: Path, found: list[Damage]) -> None:
        """Say where *path* is damaged, and keep the bytes aside."""
        for each in found:
            text = f"{path}: damaged at byte {each.offset}: {each.reason}"
            self._reports[text] = None
            logger.warning("%s (%d bytes)", text, len(each.data))
        if not self.read_only:
            set_aside(path, found)

    def _read_cursors(self) -> dict[tuple[str, str], int]:
        path = self.directory / "cursors.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            found = msgspec.json.decode(data, type=list[tuple[str, str, int]])
        except ValueError as error:
            self._report(path, [Damage(0, f"consumers start from the beginning: {error}", data)])
            self._irregular = True
            return {}
        return {(topic, consumer): place for topic, consumer, place in found}

    def _check_files(self) -> Rows:
        """Return a row for each thing that is damaged below the records."""
        found = dict(self._reports)
        paths = [self._journal.path, self.directory / "cursors.json"]
        for topic in self.names():
            paths.append(self._path(topic))
            source = self._file(topic)
            if source is not None:
                if source.header_is_damaged:
                    found[f"{self._path(topic)}: damaged at byte 0: the first line"] = None
                source.close()
        for path in paths:
            if count := count_aside(path):
                aside = f"{path}.damaged"
                found[f"{aside}: {count} damaged pieces, set aside; move it away when seen"] = None
        return [(text,) for text in found]

    # -- carrying commits over -----------------------------------------------------------------

    def _apply(self, commit: Commit, carry: Callable[[Part, bool], int | None]) -> None:
        """Have each part of *commit* carried over, then move the cursors."""
        for part in commit.parts:
            self._unsynced.add(part.topic)
            self._heads.pop(part.topic, None)
            self._ends.pop(part.topic, None)
        for part in commit.parts:
            end = carry(part, commit.is_damaged)
            if end is not None:
                self._ends[part.topic] = end
        for topic, consumer, position in commit.cursors:
            if position is None:
                self._cursors.pop((topic, consumer), None)
            else:
                self._cursors[topic, consumer] = position

    def _write(self, part: Part, is_damaged: bool = False) -> int:
        """Write *part* where it says; return where the file ends."""
        path = self._path(part.topic)
        handle = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            write_all(handle, part.data, part.at)
        finally:
            os.close(handle)
        return part.end

    def _carry_over(self, part: Part, is_damaged: bool) -> int | None:
        """Carry over a part that another process committed, unless it has done so itself."""
        size = -1 if self.read_only else _size(self._path(part.topic))
        if size < part.end or is_damaged:
            return self._carry_again(part, is_damaged)
        return part.end if size == part.end else None

    def _carry_again(self, part: Part, is_damaged: bool) -> int | None:
        """Carry *part* over to a file of which nothing is known; None if its end is not either.

        A part that is there already is written again: after a failed sync the kernel may have
        dropped it, and call the file clean.
        """
        source = self._file(part.topic)
        try:
            size = 0 if source is None else source.size
            there = _nothing if source is None else source.read
            if not fits(part, there, size):
                self._add_by_id(part, source)
                return None
            if is_damaged:
                part = Part(part.topic, part.at, mended(part, there))
        finally:
            if source is not None:
                source.close()
        if self.read_only:
            self._overlay.setdefault(part.topic, []).append((part.at, part.data))
        else:
            self._write(part)
        return part.end if size <= part.end else None

    def _add_by_id(self, part: Part, source: TopicFile | None) -> None:
        """Add the records of *part* that the file lacks at its end, wherever that is."""
        self._irregular = True
        data, ids = by_id(part, source)
        newest = source.head() if source is not None else 0
        if ids and ids[0] > newest + 1:
            text = f"{self._path(part.topic)}: records {newest + 1} to {ids[0] - 1} are missing"
            self._reports[text] = None
            logger.warning("%s", text)
        if data and self.read_only:
            at = 0 if source is None else source.size
            if source is not None and at and source.read(at - 1, 1) != b"\n":
                data = b"\n" + data
            self._overlay.setdefault(part.topic, []).append((at, data))
        elif data:
            self._write(Part(part.topic, self._end(part.topic), data))
            self._ends.pop(part.topic, None)

    def _prepared(self) -> Commit | None:
        staged = self.staged
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
            at = self._end(topic)
            given = staged.heads.get(topic, 0)
            lines = written.get(topic, [])
            if at == 0:
                lines.insert(0, write_header(topic, 0 if written.get(topic) else given))
            if lines:
                parts.append(Part(topic, at, b"".join(lines)))
        cursors = [(t, c, position) for (t, c), position in staged.cursors.items()]
        ms = self._journal.ms if self._clock().is_fake else self.now()
        return Commit(seq, ms, parts, cursors)

    def _end(self, topic: str) -> int:
        """Return where the next line of *topic* goes; a torn one there is cut off first."""
        known = self._ends.get(topic)
        if known is None:
            try:
                known = self._mend_tail(self._path(topic))
            except FileNotFoundError:
                known = 0
            self._ends[topic] = known
        return known

    def _mend_tail(self, path: Path) -> int:
        end, tail = torn_tail(path)
        if not tail:
            return end
        whole = close_line(tail)
        is_whole = is_sealed(whole)
        if not is_whole and tail.strip(b"\0"):
            self._report(path, [Damage(end, "the last line is torn", tail)])
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if is_whole:  # only its newline is missing
                write_all(handle, whole, end)
                return end + len(whole)
            os.ftruncate(handle, end)
            return end
        finally:
            os.close(handle)

    def _compact(self, topic: str, below: int, head: int = 0) -> None:
        """Write the file of *topic* anew without what lies below an offset, or with a new head."""
        self.checkpoint()
        source = self._file(topic)
        if source is None:
            return
        try:
            head = max(head, source.head())
            start, _ = source.find(below - 1)
            kept = os.pread(source._fd, source.size - start, start) if start < source.size else b""
        finally:
            source.close()
        write_whole(self._path(topic), write_header(topic, head) + kept)
        self._ends.pop(topic, None)
        self._heads.pop(topic, None)
        self._places.pop(topic, None)

    def _path(self, topic: str) -> Path:
        return self.topics / f"{topic}.jsonl"

    def _file(self, topic: str) -> TopicFile | None:
        try:
            return TopicFile(self._path(topic), topic, self._overlay.get(topic, ()))
        except FileNotFoundError:
            return None

    # -- statements ----------------------------------------------------------------------------

    def _take_offsets(self, topic: str, count: int, largest: int) -> Rows:
        head = self.staged.heads[topic] = self._head(topic) + count
        return [(topic, head, self.now())]

    def _raise_head(self, topic: str, head: int) -> Rows:
        head = self.staged.heads[topic] = max(self._head(topic), head)
        return [(topic, head)]

    def _head(self, topic: str) -> int:
        staged = self.staged.heads.get(topic)
        if staged is not None:
            return staged
        return self._head_on_disk(topic)

    def _head_on_disk(self, topic: str) -> int:
        known = self._heads.get(topic)
        if known is None:
            source = self._file(topic)
            if source is None:
                return 0
            known = self._heads[topic] = source.head()
            source.close()
        return known

    def _topic_head(self, topic: str) -> Rows:
        if topic in self.staged.heads or topic in self._overlay or self._path(topic).exists():
            return [(self._head(topic),)]
        return []

    def _list_topics(self) -> Rows:
        return [(topic, self._head(topic)) for topic in self.names()]

    def _lines(self, topic: str, after: int, *, staged: bool = True) -> Iterator[Line | Broken]:
        """Yield what is on disk, then what this transaction has staged, after an offset."""
        source = self._file(topic)
        if source is not None:
            try:
                yield from self._from_disk(source, topic, after)
            finally:
                source.close()
        for name, id, kind, payload, headers, at in self.staged.rows if staged else ():
            if name == topic and id > after:
                raw = msgspec.Raw
                yield Line(id, 1 << 62, kind, at, raw(headers), raw(payload))

    def _from_disk(self, source: TopicFile, topic: str, after: int) -> Iterator[Line | Broken]:
        inode, near, position = self._places.get(topic, (0, 0, 0))
        if inode != source.inode or near != after:
            position, near = source.find(after)
        for end, line in source.lines(position, near):
            near = line.id if isinstance(line, Line) else line.near + 1
            if near > after:
                self._places[topic] = (source.inode, near, end)
                yield line

    def _read_events(self, topic: str, after: int, limit: int, budget: int) -> Rows:
        return [row for _, row in self._page(topic, after, limit, budget)]

    def _read_records(self, topic: str, after: int, limit: int, budget: int) -> Rows:
        return [(seq, *row) for seq, row in self._page(topic, after, limit, budget)]

    def _page(self, topic: str, after: int, limit: int, budget: int) -> Iterator[tuple[int, Row]]:
        if limit <= 0:
            return
        lines = self._lines(topic, after)
        try:
            for line in lines:
                row = line.row()
                yield line.seq if isinstance(line, Line) else 0, row
                limit, budget = limit - 1, budget - len(row[2])
                if limit <= 0 or budget <= 0:
                    return
        finally:
            lines.close()  # type: ignore[attr-defined]

    def _topic_extent(self, topic: str) -> Rows:
        kept = [line.id for line in self._lines(topic, 0) if isinstance(line, Line)]
        return [(min(kept, default=None), len(kept))]

    def _first_offset(self, topic: str) -> Rows:
        return [(row[0],) for _, row in self._page(topic, 0, 1, 1)]

    def _first_offset_since(self, topic: str, since: int) -> Rows:
        for line in self._lines(topic, 0):
            if isinstance(line, Line) and line.at >= since:
                return [(line.id,)]
        return []

    def _trim_events(self, topic: str, below: int, at_most: int) -> Rows:
        below = max(below, self.staged.trims.get(topic, 0))
        gone = []
        for line in self._lines(topic, self.staged.trims.get(topic, 0)):
            near = line.id if isinstance(line, Line) else line.near + 1
            if near >= below:
                break
            gone.append((near,))
        if gone:
            self.staged.trims[topic] = below
        return gone

    def _move_cursor(self, topic: str, consumer: str, position: int) -> Rows:
        found = max(position, self._cursor(topic, consumer) or 0)
        self.staged.cursors[topic, consumer] = found
        return [(found,)]

    def _cursor(self, topic: str, consumer: str) -> int | None:
        key = topic, consumer
        return self.staged.cursors[key] if key in self.staged.cursors else self._cursors.get(key)

    def _read_cursor(self, topic: str, consumer: str) -> Rows:
        found = self._cursor(topic, consumer)
        return [] if found is None else [(found,)]

    def _lowest_cursor(self, topic: str) -> Rows:
        places = [place for name, _, place in self._list_cursors() if name == topic]
        return [(min(places, default=None),)]

    def _drop_cursor(self, topic: str, consumer: str) -> Rows:
        found = self._read_cursor(topic, consumer)
        self.staged.cursors[topic, consumer] = None
        return found

    def _list_cursors(self) -> Rows:
        all_of_them: dict[tuple[str, str], int | None] = {**self._cursors, **self.staged.cursors}
        return [
            (topic, consumer, place)
            for (topic, consumer), place in sorted(all_of_them.items())
            if place is not None
        ]


def _size(path: Path) -> int:
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def _nothing(position: int, count: int) -> bytes:
    return b""


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _cursors_as_json(cursors: dict[tuple[str, str], int]) -> bytes:
    return msgspec.json.encode([(t, c, place) for (t, c), place in sorted(cursors.items())])
