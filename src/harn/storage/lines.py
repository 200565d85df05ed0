"""A topic as a file: one JSON object a line, each with a checksum, the first one a header.

    {"harn":1,"topic":"news","head":0,"crc":"..."}
    {"id":1,"seq":7,"kind":"greeting","at":1767225600000,"headers":{},"payload":"hi","crc":"..."}

*head* is the newest offset that had been given away when the file was last written whole, so
offsets go on after everything was trimmed. The checksum covers the line up to the comma before
it. Lines are in the order of their ids, so an offset is found by bisection, whatever the size.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harn.errors import StorageCorrupt, StorageVersion
from harn.storage.operations import Row

VERSION = 1
_TAIL = len(b',"crc":"00000000"}\n')
_CHUNK = 1 << 16


class Line(msgspec.Struct):
    """A record as its line holds it; payload and headers stay as the bytes they are."""

    id: int
    seq: int
    kind: str
    at: int
    headers: msgspec.Raw
    payload: msgspec.Raw

    def row(self) -> Row:
        """Return what `read_events` returns."""
        return self.id, self.kind, bytes(self.payload), bytes(self.headers), self.at


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that cannot be trusted: *near* is the id before it, *position* its first byte."""

    near: int
    position: int
    reason: str

    def row(self) -> Row:
        """Return a row that no reader can decode and whose reason it will report."""
        return self.near + 1, "damaged", f"byte {self.position}: {self.reason}".encode(), b"{}", 0


_line_decoder = msgspec.json.Decoder(Line)


def seal(body: bytes) -> bytes:
    """Close an object (given without its brace) with its checksum."""
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def write_line(id: int, seq: int, kind: str, payload: bytes, headers: bytes, at: int) -> bytes:
    """Write one record."""
    return seal(
        b'{"id":%d,"seq":%d,"kind":%b,"at":%d,"headers":%b,"payload":%b'
        % (id, seq, msgspec.json.encode(kind), at, headers, payload)
    )


def write_header(topic: str, head: int) -> bytes:
    """Write a file's first line."""
    return seal(b'{"harn":%d,"topic":%b,"head":%d' % (VERSION, msgspec.json.encode(topic), head))


def is_sealed(line: bytes) -> bool:
    """Tell whether *line* is whole and says what was written."""
    if not line.endswith(b'"}\n') or line[-_TAIL : -_TAIL + 8] != b',"crc":"':
        return False
    try:
        return zlib.crc32(line[:-_TAIL]) == int(line[-11:-3], 16)
    except ValueError:
        return False


def read_line(line: bytes, near: int, position: int) -> Line | Broken:
    """Read one record's line."""
    if not is_sealed(line):
        return Broken(near, position, "the checksum does not match")
    try:
        return _line_decoder.decode(line)
    except (ValueError, RecursionError) as error:
        return Broken(near, position, str(error))


class TopicFile:
    """One topic's file, opened for reading; small and short-lived."""

    def __init__(self, path: Path, topic: str) -> None:
        self.path = path
        self.topic = topic
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        seen = os.fstat(self._fd)
        self.inode = seen.st_ino
        self.size = seen.st_size
        self.start, self.base = self._read_header()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._fd)

    def head(self) -> int:
        """Return the newest offset that was ever given away here."""
        end = self.size
        while end > self.start:
            begin = self._line_start(end - 1)
            found = read_line(self._pread(begin, end - begin), 0, begin)
            if isinstance(found, Line):
                return max(found.id, self.base)
            end = begin
        return self.base

    def find(self, after: int) -> int:
        """Return the byte where the first record after offset *after* begins."""
        low, high = self.start, self.size
        while low < high:
            middle = self._line_start((low + high) // 2)
            line, end = self._line_at(middle, high)
            while isinstance(line, Broken) and end < high:
                line, end = self._line_at(end, high)
            if isinstance(line, Line) and line.id <= after:
                low = end
            else:
                high = middle
        return low

    def lines(self, position: int, near: int) -> Iterator[tuple[int, Line | Broken]]:
        """Yield (byte after it, record) from *position* on; a torn last line is not there."""
        kept = b""
        while position < self.size:
            more = self._pread(position + len(kept), max(_CHUNK, len(kept)))
            data = kept + more
            cut = data.rfind(b"\n") + 1
            if not cut:
                if not more:
                    return
                kept = data
                continue
            for line in _split(data[:cut]):
                found = read_line(line, near, position)
                position += len(line)
                near = found.id if isinstance(found, Line) else near + 1
                yield position, found
            kept = data[cut:]

    def _read_header(self) -> tuple[int, int]:
        line, end = self._raw_line(0, self.size)
        if not is_sealed(line):
            return 0, 0  # the header is damaged: its records still count
        header = msgspec.json.decode(line)
        if "harn" not in header:
            return 0, 0
        if header["harn"] > VERSION:
            raise StorageVersion(f"{self.path} was written by a newer harn; upgrade")
        if header["topic"] != self.topic:
            raise StorageCorrupt(f"{self.path} belongs to topic {header['topic']!r}")
        return end, header["head"]

    def _line_at(self, position: int, limit: int) -> tuple[Line | Broken, int]:
        line, end = self._raw_line(position, limit)
        return read_line(line, 0, position), end

    def _raw_line(self, position: int, limit: int) -> tuple[bytes, int]:
        data = b""
        while position + len(data) < limit:
            more = self._pread(position + len(data), max(4096, len(data)))
            if not more:
                break
            data += more
            cut = data.find(b"\n")
            if cut >= 0:
                return data[: cut + 1], position + cut + 1
        return data, position + len(data) if data else limit

    def _line_start(self, position: int) -> int:
        """Return where the line that holds byte *position* begins."""
        end = position
        while end > self.start:
            begin = max(self.start, end - 4096)
            cut = self._pread(begin, end - begin).rfind(b"\n")
            if cut >= 0:
                return begin + cut + 1
            end = begin
        return self.start

    def _pread(self, position: int, count: int) -> bytes:
        return os.pread(self._fd, count, position)


def _split(data: bytes) -> list[bytes]:
    # not bytes.splitlines, which also splits at a "\r" that damage may have put anywhere
    return [part + b"\n" for part in data.split(b"\n")[:-1]]
