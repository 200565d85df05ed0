"""A topic as a file: one JSON object a line, each with a checksum, the first one a header.

    {"harn":1,"topic":"news","head":0,"crc":"..."}
    {"id":1,"seq":7,"kind":"greeting","at":1767225600000,"headers":{},"payload":"hi","crc":"..."}

*head* is the newest offset that was taken when the file was last written whole, so offsets
continue after everything was trimmed. The checksum covers the line up to the comma before
it. Lines are in the order of their ids, so an offset is found by bisection, whatever the size.

A damaged line keeps its place and its id: it is reported where it stands, and no other record
gets its id.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from harn.errors import StorageCorrupt, StorageVersion
from harn.storage.engines.file.byte_repair import corrected
from harn.storage.jsonl import close_line, intact_pieces, is_sealed, read_lines, seal
from harn.storage.operations import Row

VERSION = 1
_CHUNK = 1 << 16


class RecordLine(msgspec.Struct):
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


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that cannot be trusted: *near* is the id before it, *position* its first byte."""

    near: int
    position: int
    reason: str

    def row(self) -> Row:
        """Return a row that no reader can decode and whose reason it will report."""
        return self.near + 1, "damaged", f"byte {self.position}: {self.reason}".encode(), b"{}", 0


_line_decoder = msgspec.json.Decoder(RecordLine)


def write_line(id: int, seq: int, kind: str, payload: bytes, headers: bytes, at: int) -> bytes:
    """Write one record."""
    return seal(
        b'{"id":%d,"seq":%d,"kind":%b,"at":%d,"headers":%b,"payload":%b'
        % (id, seq, msgspec.json.encode(kind), at, headers, payload)
    )


def write_header(topic: str, head: int) -> bytes:
    """Write a file's first line."""
    return seal(b'{"harn":%d,"topic":%b,"head":%d' % (VERSION, msgspec.json.encode(topic), head))


def read_line(line: bytes, near: int, position: int) -> RecordLine | BrokenLine:
    """Read one record's line."""
    return _decode(line if is_sealed(line) else None, near, position)


def _decode(text: bytes | None, near: int, position: int) -> RecordLine | BrokenLine:
    """Read the text of a line as `read_lines` gives it."""
    if text is None:
        return BrokenLine(near, position, "the checksum does not match")
    try:
        return _line_decoder.decode(text)
    except (ValueError, RecursionError) as error:
        return BrokenLine(near, position, str(error))


class TopicFile:
    """One topic's file, opened for reading; small and short-lived.

    *overlay* holds (byte, data) that is to be read as if it had been written there.
    """

    def __init__(self, path: Path, topic: str, overlay: Sequence[tuple[int, bytes]] = ()) -> None:
        self.path = path
        self.topic = topic
        self.header_is_damaged: bool = False
        self._lost_header = b""
        self._overlay = overlay
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            if not overlay:
                raise
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        seen = os.fstat(self._fd)
        self.inode: int = seen.st_ino
        self.size: int = max([seen.st_size, *(at + len(data) for at, data in overlay)])
        self.start: int
        self.base: int
        self.start, self.base = self._read_header()

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def head(self) -> int:
        """Return the newest offset that a record of this topic ever had."""
        return self.newest()[0]

    def newest(self) -> tuple[int, int]:
        """Return the newest offset, and the number in the whole log of the last intact record.

        Damaged lines at the end count: each was a record.
        """
        base = self._newest_before()
        end, broken, torn = self.size, 0, b""
        while end > self.start:
            begin = self._line_start(end - 1)
            line = self.read(begin, end - begin)
            for piece in reversed(intact_pieces(line)):
                found = read_line(close_line(piece), 0, begin)
                if isinstance(found, RecordLine):
                    torn_id = torn.startswith(b'{"id":%d,' % (found.id + broken + 1))
                    return max(found.id + broken + torn_id, base), found.seq
                if piece.endswith(b"\n"):
                    broken += 1
                else:
                    torn = piece
            end = begin
        torn_id = torn.startswith(b'{"id":%d,' % (base + broken + 1))
        return base + broken + torn_id, 0

    def find(self, after: int) -> tuple[int, int]:
        """Return the byte to read from for what follows offset *after*, and the offset before it.

        Damaged lines in front of the first intact record after *after* lie behind that byte.
        """
        low, high, near = self.start, self.size, 0
        while low < high:
            middle = self._line_start((low + high) // 2)
            line, end = self._line_at(middle, high)
            while isinstance(line, BrokenLine) and end < high:
                line, end = self._line_at(end, high)
            if isinstance(line, RecordLine) and line.id <= after:
                low, near = end, line.id
            else:
                high = middle
        return low, near

    def lines(self, position: int, near: int) -> Iterator[tuple[int, RecordLine | BrokenLine]]:
        """Yield (byte after it, record) from *position* on; a torn last line is not there.

        *near* is the offset before that byte. Damaged lines get the offsets that are missing
        before the next intact record, never one that is there.
        """
        broken: list[tuple[int, BrokenLine]] = []
        for start, line, text in read_lines(self._chunks(position), position):
            found = _decode(text, near, start)
            if isinstance(found, BrokenLine):
                if line.endswith(b"\n"):
                    broken.append((start + len(line), found))
                continue
            yield from _numbered(broken, near, found.id)
            broken.clear()
            near = found.id
            yield start + len(line), found
        yield from _numbered(broken, near, 1 << 62)

    def _chunks(self, position: int) -> Iterator[bytes]:
        while position < self.size and (chunk := self.read(position, _CHUNK)):
            yield chunk
            position += len(chunk)

    def _read_header(self) -> tuple[int, int]:
        line, end = self._raw_line(0, self.size)
        if not is_sealed(line):
            return self._broken_header(line)
        header = msgspec.json.decode(line)
        if "harn" not in header:
            return 0, 0
        if header["harn"] > VERSION:
            raise StorageVersion(f"{self.path} was written by a newer harn; upgrade")
        if header["topic"] != self.topic:
            raise StorageCorrupt(f"{self.path} belongs to topic {header['topic']!r}")
        return end, header["head"]

    def _broken_header(self, line: bytes) -> tuple[int, int]:
        """Take a damaged first line for what it is; the records behind it still count."""
        self.header_is_damaged = self.size > 0
        first = intact_pieces(line)[0] if line else b""
        if self._is_header(close_line(first)):
            return len(first), int(msgspec.json.decode(close_line(first))["head"])
        self._lost_header = line
        return 0, 0

    def _newest_before(self) -> int:
        """Return the offset that the header says, as far as it can be made out."""
        whole = corrected(self._lost_header) if self._lost_header else None
        if whole is not None and self._is_header(whole):
            return int(msgspec.json.decode(whole)["head"])
        return self.base

    def _is_header(self, line: bytes) -> bool:
        prefix = b'{"harn":%d,"topic":"%b","head":' % (VERSION, self.topic.encode())
        return line.startswith(prefix) and is_sealed(line)

    def _line_at(self, position: int, limit: int) -> tuple[RecordLine | BrokenLine, int]:
        line, end = self._raw_line(position, limit)
        return read_line(line, 0, position), end

    def _raw_line(self, position: int, limit: int) -> tuple[bytes, int]:
        data = b""
        while position + len(data) < limit:
            more = self.read(position + len(data), max(4096, len(data)))
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
            cut = self.read(begin, end - begin).rfind(b"\n")
            if cut >= 0:
                return begin + cut + 1
            end = begin
        return self.start

    def read(self, position: int, count: int) -> bytes:
        """Return at most *count* bytes from *position* on."""
        if not self._overlay:
            return os.pread(self._fd, count, position)
        count = max(0, min(count, self.size - position))
        found = bytearray(os.pread(self._fd, count, position).ljust(count, b"\0"))
        for at, data in self._overlay:
            begin, end = max(at, position), min(at + len(data), position + count)
            if begin < end:
                found[begin - position : end - position] = data[begin - at : end - at]
        return bytes(found)


def _numbered(
    broken: list[tuple[int, BrokenLine]], near: int, following: int
) -> Iterator[tuple[int, BrokenLine]]:
    for count, (end, each) in enumerate(broken):
        # A newline that damage put into a record makes two lines of one.
        before = min(near + count, max(near, following - 1) - 1)
        yield end, BrokenLine(before, each.position, each.reason)
