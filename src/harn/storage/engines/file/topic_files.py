"""The files of all topics in a directory, and how commits of the journal get into them.

A commit's parts are written after the journal has them, without a sync. After a crash, or when
another process committed, they are carried over from the journal (see `commit_recovery.py`).
Opened read-only, no file is changed: what would be written is kept as an overlay and read as if it
were there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harn.file_sync import sync_file
from harn.private_files import open_private, sync_dir
from harn.storage.engines.file.commit_journal import Part
from harn.storage.engines.file.commit_recovery import by_id, fits, mended, torn_tail
from harn.storage.engines.file.damage_reports import DamageReports
from harn.storage.engines.file.topic_file import BrokenLine, RecordLine, TopicFile, write_header
from harn.storage.jsonl import Damage, close_line, is_sealed, write_all, write_whole
from harn.storage.operations import Row

Carry = Callable[[Part, bool], int | None]
"""Brings a part, which may be damaged, into its file; returns where the file ends, if known."""


class TopicFiles:
    """The topics' files, and what is known of them while the journal is the same one."""

    def __init__(self, directory: Path, reports: DamageReports, *, read_only: bool) -> None:
        self.directory = directory
        self.unsynced: set[str] = set()
        """Topics whose files have bytes that only the journal has made durable."""
        self.is_irregular: bool = False
        """Whether a file was not as the journal expects: then the journal must be replaced."""
        self._read_only = read_only
        self._reports = reports
        self._heads: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._places: dict[str, tuple[int, int, int]] = {}
        """Where a reader of each topic came to: inode, offset, and the byte behind it."""
        self._overlay: dict[str, list[tuple[int, bytes]]] = {}

    def forget(self) -> None:
        """Forget all that is known: the journal is another one."""
        self._heads.clear()
        self._ends.clear()
        self._places.clear()
        self._overlay.clear()
        self.unsynced.clear()
        self.is_irregular = False

    # -- reading -------------------------------------------------------------------------------

    def path(self, topic: str) -> Path:
        """Return the file of *topic*."""
        return self.directory / f"{topic}.jsonl"

    def names(self) -> set[str]:
        """Return the topics that have a file."""
        found = {name.name.removesuffix(".jsonl") for name in self.directory.glob("*.jsonl")}
        return found | set(self._overlay)

    def has(self, topic: str) -> bool:
        """Tell whether *topic* has a file."""
        return topic in self._overlay or self.path(topic).exists()

    def head(self, topic: str) -> int:
        """Return the newest offset of *topic*, 0 without a file."""
        known = self._heads.get(topic)
        if known is None:
            source = self._open(topic)
            if source is None:
                return 0
            known = self._heads[topic] = source.head()
            source.close()
        return known

    def lines(self, topic: str, after: int) -> Iterator[RecordLine | BrokenLine]:
        """Yield the records of *topic* after an offset."""
        source = self._open(topic)
        if source is None:
            return
        try:
            inode, near, position = self._places.get(topic, (0, 0, 0))
            if inode != source.inode or near != after:
                position, near = source.find(after)
            for end, line in source.lines(position, near):
                near = line.id if isinstance(line, RecordLine) else line.near + 1
                if near > after:
                    self._places[topic] = (source.inode, near, end)
                    yield line
        finally:
            source.close()

    def read_heads(self) -> int:
        """Read the newest offset of every topic; return the newest number in the whole log."""
        newest = 0
        for topic in self.names():
            source = self._open(topic)
            if source is not None:
                self._heads[topic], seq = source.newest()
                newest = max(newest, seq)
                source.close()
        return newest

    def damaged_headers(self) -> list[str]:
        """Report the files whose first line is damaged."""
        found = []
        for topic in sorted(self.names()):
            source = self._open(topic)
            if source is not None:
                if source.header_is_damaged:
                    found.append(f"{self.path(topic)}: damaged at byte 0: the first line")
                source.close()
        return found

    def _open(self, topic: str) -> TopicFile | None:
        try:
            return TopicFile(self.path(topic), topic, self._overlay.get(topic, ()))
        except FileNotFoundError:
            return None

    # -- writing -------------------------------------------------------------------------------

    def take(self, parts: Sequence[Part], carry: Carry, *, is_damaged: bool = False) -> None:
        """Bring the *parts* of a commit into their files."""
        for part in parts:
            self.unsynced.add(part.topic)
            self._heads.pop(part.topic, None)
            self._ends.pop(part.topic, None)
        for part in parts:
            end = carry(part, is_damaged)
            if end is not None:
                self._ends[part.topic] = end

    def note_heads(self, rows: Sequence[Row]) -> None:
        """Remember the newest offsets after *rows*, whose first columns are topic and offset."""
        self._heads |= {row[0]: row[1] for row in rows}

    def write(self, part: Part, is_damaged: bool = False) -> int:
        """Write *part* where it says; return where the file ends."""
        handle = open_private(self.path(part.topic), os.O_RDWR | os.O_CREAT)
        try:
            write_all(handle, part.data, part.at)
        finally:
            os.close(handle)
        return part.end

    def carry_over(self, part: Part, is_damaged: bool) -> int | None:
        """Carry over a part that another process committed, unless it has done so itself."""
        size = -1 if self._read_only else _size(self.path(part.topic))
        if size < part.end or is_damaged:
            return self.carry_again(part, is_damaged)
        return part.end if size == part.end else None

    def carry_again(self, part: Part, is_damaged: bool) -> int | None:
        """Carry *part* over to a file of which nothing is known; None if its end is not either.

        A part that is there already is written again: after a failed sync the kernel may have
        dropped it, and call the file clean.
        """
        source = self._open(part.topic)
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
        if self._read_only:
            self._overlay.setdefault(part.topic, []).append((part.at, part.data))
        else:
            self.write(part)
        return part.end if size <= part.end else None

    def _add_by_id(self, part: Part, source: TopicFile | None) -> None:
        """Add the records of *part* that the file lacks at its end, wherever that is."""
        self.is_irregular = True
        data, ids = by_id(part, source)
        newest = source.head() if source is not None else 0
        if ids and ids[0] > newest + 1:
            self._reports.add_missing(self.path(part.topic), newest + 1, ids[0] - 1)
        if data and self._read_only:
            at = 0 if source is None else source.size
            if source is not None and at and source.read(at - 1, 1) != b"\n":
                data = b"\n" + data
            self._overlay.setdefault(part.topic, []).append((at, data))
        elif data:
            self.write(Part(part.topic, self.end(part.topic), data))
            self._ends.pop(part.topic, None)

    def end(self, topic: str) -> int:
        """Return where the next line of *topic* goes; a torn one there is cut off first."""
        known = self._ends.get(topic)
        if known is None:
            try:
                known = self._mend_tail(self.path(topic))
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
            self._reports.add(path, [Damage(end, "the last line is torn", tail)])
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if is_whole:  # only its newline is missing
                write_all(handle, whole, end)
                return end + len(whole)
            os.ftruncate(handle, end)
            return end
        finally:
            os.close(handle)

    def compact(self, topic: str, below: int, head: int = 0) -> None:
        """Replace the file of *topic* by one without the records below an offset.

        Its newest offset becomes *head*, if that is higher. Every file must be synced before.
        """
        source = self._open(topic)
        if source is None:
            return
        try:
            head = max(head, source.head())
            start, _ = source.find(below - 1)
            kept = source.read(start, source.size - start) if start < source.size else b""
        finally:
            source.close()
        write_whole(self.path(topic), write_header(topic, head) + kept)
        self._ends.pop(topic, None)
        self._heads.pop(topic, None)
        self._places.pop(topic, None)

    def sync(self) -> None:
        """Sync every file with unsynced bytes, and the directory."""
        for topic in sorted(self.unsynced):
            _sync_file(self.path(topic))
        sync_dir(self.directory)


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
        sync_file(handle)
    finally:
        os.close(handle)
