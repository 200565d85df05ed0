"""The commit journal of a directory of topic files: what makes a commit one thing.

A commit is written here first, in one piece, and fsynced: that is the moment it is true. Only
then is it written to the topics' files, each part at its stated byte, without a sync. Whoever
next takes the lock repeats what was not carried over, which does no harm twice. Once the journal
has grown, the topics' files are synced and it starts anew. So a commit costs one sync however
many topics it touches, and is whole or absent in all of them.

    {"harn":1,"seq":120,"ms":1767225600000,"crc":"..."}
    {"seq":122,"ms":...,"parts":[["news",4096,210]],"cursors":[],"body":123,"crc":"..."}
    <210 bytes for the file of "news", to be written at byte 4096>
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from harn.errors import StorageVersion
from harn.storage.lines import VERSION, is_sealed, seal
from harn.storage.places import sync_dir

NAME = "commits.jsonl"


class Part(msgspec.Struct, frozen=True):
    """Bytes for one topic's file, and where they go."""

    topic: str
    at: int
    data: bytes

    @property
    def end(self) -> int:
        """The byte after it."""
        return self.at + len(self.data)


@dataclass(frozen=True, slots=True)
class Commit:
    """What became true together."""

    seq: int
    ms: int
    parts: list[Part]
    cursors: list[tuple[str, str, int | None]] = field(default_factory=list)


class Journal:
    """The journal's file, read and written under the directory's lock."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self.seq = 0
        self.ms = 0
        self.position = 0
        self._fd = -1
        self._inode = -1

    def is_replaced(self) -> bool:
        """Tell whether the file is another than the one we have read; True before the first."""
        try:
            seen = os.stat(self.path)
        except FileNotFoundError:
            return True
        return seen.st_ino != self._inode or seen.st_size < self.position

    def open(self) -> None:
        """Open the file anew, making it when there is none, and read its first line."""
        self.close()
        if not self.path.exists():
            self.replace()
            return
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags)
        self._inode = os.fstat(self._fd).st_ino
        line = os.pread(self._fd, 4096, 0).partition(b"\n")[0] + b"\n"
        self.position = len(line)
        if not is_sealed(line):
            # It is renamed into place whole, so this is damage from outside. The topics' files
            # have everything that was carried over; start anew behind whatever they hold.
            self.replace()
            return
        header = msgspec.json.decode(line)
        if header["harn"] > VERSION:
            raise StorageVersion(f"{self.path} was written by a newer harn; upgrade")
        self.seq, self.ms = header["seq"], header["ms"]

    def news(self) -> Iterator[Commit]:
        """Yield the commits that were added since we last looked; cut a torn one off."""
        size = os.fstat(self._fd).st_size
        if size == self.position:
            return
        data = os.pread(self._fd, size - self.position, self.position)
        start = 0
        while (found := _read_commit(data, start)) is not None:
            commit, start = found
            self.seq, self.ms = commit.seq, max(self.ms, commit.ms)
            yield commit
        self.position += start
        if self.position < size:
            os.ftruncate(self._fd, self.position)

    def add(self, commit: Commit, *, sync: bool) -> None:
        """Make *commit* true. When this raises, it is not."""
        data = _write_commit(commit)
        try:
            written = os.pwrite(self._fd, data, self.position)
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self.position + written)
            if sync:
                os.fdatasync(self._fd)
        except OSError:
            self._take_back()
            raise
        self.position += len(data)
        self.seq, self.ms = commit.seq, max(self.ms, commit.ms)

    def sync(self) -> None:
        """Sync what was added without."""
        if self._fd >= 0:
            os.fdatasync(self._fd)

    def replace(self) -> None:
        """Start anew; everything said so far must be synced in the topics' files."""
        temporary = self.path.with_suffix(".tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fresh = os.open(temporary, flags, 0o600)
        try:
            os.fchmod(fresh, 0o600)
            header = seal(b'{"harn":%d,"seq":%d,"ms":%d' % (VERSION, self.seq, self.ms))
            os.write(fresh, header)
            os.fsync(fresh)
            os.rename(temporary, self.path)
            sync_dir(self.path.parent)
        except OSError:
            os.close(fresh)
            raise
        self.close()
        self._fd, self._inode = fresh, os.fstat(fresh).st_ino
        self.position = len(header)

    def close(self) -> None:
        """Let go of the file."""
        fd, self._fd, self._inode = self._fd, -1, -1
        if fd >= 0:
            os.close(fd)

    def _take_back(self) -> None:
        # After a failed write or sync nothing is known about these bytes: cut them off, and do
        # not trust this descriptor again.
        try:
            os.ftruncate(self._fd, self.position)
        finally:
            self.close()


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


def _read_commit(data: bytes, start: int) -> tuple[Commit, int] | None:
    cut = data.find(b"\n", start) + 1
    line = data[start:cut]
    if not cut or not is_sealed(line):
        return None
    head = msgspec.json.decode(line)
    end = cut + sum(length for _, _, length in head["parts"])
    if end > len(data) or zlib.crc32(data[cut:end]) != head["body"]:
        return None
    parts = []
    for topic, at, length in head["parts"]:
        parts.append(Part(topic, at, data[cut : cut + length]))
        cut += length
    cursors = [(topic, consumer, place) for topic, consumer, place in head["cursors"]]
    return Commit(head["seq"], head["ms"], parts, cursors), end
