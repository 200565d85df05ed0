"""The commit journal of a directory of topic files: what makes a commit one thing.

A commit is written here first, in one piece, and fsynced: that is the moment it is true. Only
then is it written to the topics' files, each part at its stated byte, without a sync. The next
process that takes the lock repeats what was not carried over; to repeat it twice does no harm.
Once the journal has grown, the topics' files are synced and it is emptied. So a commit costs one
sync however many topics it touches, and is whole or absent in all of them.

Bytes at the end that begin a commit and do not finish it are a torn tail: it was never
acknowledged, and is cut off. Anything else that cannot be read is damage. It is reported with its
place, the commits behind it are found again, and what is intact inside it is kept.

    {"harn":1,"seq":120,"ms":1767225600000,"crc":"..."}
    {"seq":122,"ms":...,"parts":[["news",4096,210]],"cursors":[],"body":123,"crc":"..."}
    <210 bytes for the file of "news", to be written at byte 4096>
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from harn.errors import StorageVersion
from harn.storage.engines.file.byte_repair import corrected
from harn.storage.engines.file.topic_file import VERSION
from harn.storage.jsonl import SEAL, AppendFile, Damage, seal

NAME = "commits.jsonl"

S = TypeVar("S")


class Part(msgspec.Struct, frozen=True):
    """Bytes for one topic's file, and where they go."""

    topic: str
    at: int
    data: bytes

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.at + len(self.data)


class Commit(msgspec.Struct, frozen=True):
    """One commit: the parts that take effect together."""

    seq: int
    ms: int
    parts: list[Part]
    cursors: list[tuple[str, str, int | None]] = []
    is_damaged: bool = False
    """Whether some of the lines in *parts* are not what was written."""


class _Header(msgspec.Struct):
    harn: int
    seq: int
    ms: int


class _Head(msgspec.Struct):
    seq: int
    ms: int
    parts: list[tuple[str, int, Annotated[int, msgspec.Meta(ge=0)]]]
    cursors: list[tuple[str, str, int | None]]
    body: int

    @property
    def length(self) -> int:
        """How many bytes of records follow."""
        return sum(length for _, _, length in self.parts)


class CommitJournal(AppendFile):
    """The journal's file, read and written under the directory's lock; or *read_only*."""

    handle: int
    end: int

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        super().__init__(directory / NAME)
        self._read_only = read_only
        self.seq: int = 0
        self.ms: int = 0
        self.is_headless: bool = False
        """Whether the file has lost its first line, and must be replaced."""
        self._header_end = b""
        self._inode = -1

    def is_replaced(self) -> bool:
        """Tell whether the file is another than the one we have read; True before the first."""
        if self.handle < 0:
            return True
        try:
            seen = os.stat(self.path)
        except FileNotFoundError:
            return True
        return seen.st_ino != self._inode or seen.st_size < self.end

    def open(self) -> None:
        """Open the file again, making it when there is none, and read its first line."""
        self.close()
        self.end = 0
        if not self.path.exists():
            if not self._read_only:
                self.start_again()
            return
        access = os.O_RDONLY if self._read_only else os.O_RDWR
        self.handle = os.open(self.path, access | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._inode = os.fstat(self.handle).st_ino
        start = os.pread(self.handle, 4096, 0)
        found = _sealed(start, 0, _Header)
        self.is_headless = found is None
        if found is None:
            return  # damaged: `news` says so
        header, self.end = found
        if header.harn > VERSION:
            raise StorageVersion(f"{self.path} was written by a newer harn; upgrade")
        self.seq, self.ms = max(self.seq, header.seq), max(self.ms, header.ms)
        self._header_end = start[self.end - 1 : self.end]
        self.is_headless = not self._header_end

    def news(self) -> Iterator[Commit | Damage]:
        """Yield what was added since we last looked; cut a torn tail off."""
        if self._header_end not in (b"", b"\n"):
            wrong, self._header_end = self._header_end, b""
            yield Damage(self.end - 1, "the newline after the first line is wrong", wrong)
        size = os.fstat(self.handle).st_size if self.handle >= 0 else 0
        if size <= self.end:
            return
        base = self.end
        data = os.pread(self.handle, size - base, base)
        for end, found in scan(data, headless=base == 0):
            self.end = base + end
            if isinstance(found, Commit):
                self.seq, self.ms = max(self.seq, found.seq), max(self.ms, found.ms)
                yield found
            else:
                yield Damage(base + found.offset, found.reason, found.data)
        if self.end < size and not self._read_only:
            self.cut_back()

    def add(self, commit: Commit, *, sync: bool) -> None:
        """Make *commit* true. When this raises, it is not."""
        before = self.end
        try:
            self.append(_write_commit(commit))
            if sync:
                self.sync()
        except OSError:
            # After a failed write or sync nothing is known about these bytes: cut them off, and
            # do not trust this handle again.
            self.end = before
            try:
                self.cut_back()
            finally:
                self.close()
            raise
        self.seq, self.ms = commit.seq, max(self.ms, commit.ms)

    def sync_if_open(self) -> None:
        """Sync what was added without."""
        if self.handle >= 0:
            self.sync()

    def start_again(self) -> None:
        """Empty the file; everything said so far must be synced in the topics' files."""
        self.replace([seal(b'{"harn":%d,"seq":%d,"ms":%d' % (VERSION, self.seq, self.ms))])
        self._inode = os.fstat(self.handle).st_ino
        self.is_headless, self._header_end = False, b""


def _write_commit(commit: Commit) -> bytes:
    body = b"".join(part.data for part in commit.parts)
    head: dict[str, Any] = {
        "seq": commit.seq,
        "ms": commit.ms,
        "parts": [(part.topic, part.at, len(part.data)) for part in commit.parts],
        "cursors": commit.cursors,
        "body": zlib.crc32(body),
    }
    return seal(msgspec.json.encode(head)[:-1]) + body


def scan(data: bytes, *, headless: bool = False) -> Iterator[tuple[int, Commit | Damage]]:
    """Yield (byte after it, commit or damage); what is left behind the last one is a torn tail.

    *headless* data begins with a file's first line that could not be read.
    """
    start = 0
    while start < len(data):
        found = _read_commit(data, start)
        if found is None:
            end = _next_commit(data, start + 1)
            if end is None:
                if not headless and _is_torn(data, start):
                    return
                end = len(data)
            yield end, Damage(start, "not a commit", data[start:end])
        else:
            commit, end, damage = found
            if damage is not None:
                yield start, damage
            yield end, commit
        start, headless = end, False


def _read_commit(data: bytes, start: int) -> tuple[Commit, int, Damage | None] | None:
    """Read the commit at *start*, with what is wrong with it; None if there is none."""
    head, cut, damage = _read_head(data, start)
    if head is None or (end := cut + head.length) > len(data):
        return None
    body, wrong = data[cut:end], False
    if zlib.crc32(body) != head.body:
        if damage is not None or not _begins_commit(data, end):
            return None
        wrong = True
        damage = Damage(start, "the checksum of a commit's records does not match", data[start:end])
    parts = []
    for topic, at, length in head.parts:
        parts.append(Part(topic, at, data[cut : cut + length]))
        cut += length
    return Commit(head.seq, head.ms, parts, head.cursors, wrong), end, damage


def _read_head(data: bytes, start: int) -> tuple[_Head | None, int, Damage | None]:
    """Return a commit's first line, the byte after it, and what is wrong with it."""
    found = _sealed(data, start, _Head)
    if found is not None:
        head, cut = found
        if data[cut - 1 : cut] in (b"\n", b""):
            return head, cut, None
        reason = "the newline after a commit's first line is wrong"
        return head, cut, Damage(start, reason, data[start:cut])
    cut = data.find(b"\n", start) + 1
    whole = corrected(data[start:cut]) if cut else None
    found = None if whole is None else _sealed(whole, 0, _Head)
    if found is None or not found[0].length:
        return None, 0, None  # without records nothing confirms the repair
    reason = "one byte of a commit's first line is wrong"
    return found[0], cut, Damage(start, reason, data[start:cut])


def _sealed(data: bytes, start: int, form: type[S]) -> tuple[S, int] | None:
    """Read the sealed object at *start*; return it with the byte after its newline."""
    found = SEAL.search(data, start)
    if found is None or zlib.crc32(data[start : found.start()]) != int(found[1], 16):
        return None
    try:
        return msgspec.json.decode(data[start : found.end()], type=form), found.end() + 1
    except ValueError:
        return None


def _begins_commit(data: bytes, start: int) -> bool:
    """Tell whether the data ends at *start*, or a commit begins there, torn or whole."""
    if start == len(data):
        return True
    return data.startswith(b'{"seq":'[: len(data) - start], start)


def _next_commit(data: bytes, start: int) -> int | None:
    """Return where the next whole commit begins, at *start* or behind it."""
    while (start := data.find(b'\n{"seq":', start - 1) + 1) > 0:
        found = _sealed(data, start, _Head)
        if found is not None and found[1] + found[0].length <= len(data):
            return start
        start += 1
    return None


def _is_torn(data: bytes, start: int) -> bool:
    """Tell whether the data from *start* on is a commit that was not written to its end."""
    found = _sealed(data, start, _Head)
    if found is not None:
        return found[1] + found[0].length > len(data)
    return b"\n" not in data[start:]
