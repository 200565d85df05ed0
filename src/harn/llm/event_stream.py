"""The format of server-sent events, read piece by piece as it arrives.

The rules are those of the HTML standard, "Interpreting an event stream". Nothing here awaits or
opens a connection. Memory is bounded: neither a line nor the data of an event may be longer than
the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from harn.errors import SseError
from harn.option_checks import read_whole

LINE_END = re.compile(rb"\r\n|\n|\r")
BOM = b"\xef\xbb\xbf"
LONGEST_RETRY_MS = 3_600_000
"""An hour: a server cannot make a reader wait longer between two connections."""


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: its *kind* (`"message"` if the server names none), *data*, and last *id*.

    *id* is the last one that the server sent, with this event or before it; empty without any.

    >>> SseEvent("push", '{"ref": "main"}', id="7").payload["ref"]
    'main'
    """

    kind: str
    data: str
    id: str = ""

    @property
    def payload(self) -> Any:
        """The data decoded as JSON, or as text if it is not JSON.

        >>> SseEvent("push", '{"ref": "main"}').payload, SseEvent("push", "main").payload
        ({'ref': 'main'}, 'main')
        """
        try:
            return msgspec.json.decode(self.data)
        except (msgspec.DecodeError, RecursionError):
            return self.data


class EventStreamParser:
    r"""Makes events of the bytes of one connection; *id* is the last one before it.

    >>> list(EventStreamParser(1000).feed(b"event: push\ndata: main\nid: 7\n\ndata: cut off"))
    [SseEvent(kind='push', data='main', id='7')]
    """

    def __init__(self, most_bytes: int, id: str = "") -> None:
        self.id: str = id
        """The id that a new connection continues after."""
        self.retry_ms: int | None = None
        """How long to wait before the next connection, if the server has said so."""
        self._most = most_bytes
        self._rest = bytearray()
        self._after_cr = False
        self._is_first = True
        self._kind = ""
        self._data: list[str] = []
        self._size = 0
        self._next_id = id

    def feed(self, piece: bytes) -> Iterator[SseEvent]:
        """Take the next bytes, and yield the events that they complete; to be used to its end.

        Events before one that is too long are yielded before the error.
        """
        if self._after_cr and piece:
            # The last piece ended in CR. A LF now belongs to the same end of line.
            self._after_cr = False
            piece = piece.removeprefix(b"\n")
        if not piece:
            return
        self._after_cr = piece.endswith(b"\r")
        first, *lines = LINE_END.split(piece)
        self._rest += first
        for line in lines:
            self._check(len(self._rest))
            if (event := self._take_line(bytes(self._rest))) is not None:
                yield event
            self._rest = bytearray(line)
        self._check(len(self._rest))

    def _take_line(self, line: bytes) -> SseEvent | None:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.decode("utf-8", "replace").partition(":")
        self._take_field(name, value.removeprefix(" "))
        return None

    def _take_field(self, name: str, value: str) -> None:
        """Take one field; a line that begins with a colon is a comment, and has an empty name."""
        if name == "data":
            self._size += len(value) + 1
            self._check(self._size)
            self._data.append(value)
        elif name == "event":
            self._kind = value
        elif name == "id" and "\0" not in value:
            self._next_id = value
        elif name == "retry" and (retry_ms := read_whole(value, 100)) is not None:
            self.retry_ms = min(retry_ms, LONGEST_RETRY_MS)

    def _dispatch(self) -> SseEvent | None:
        self.id = self._next_id
        kind, data = self._kind or "message", self._data
        self._kind, self._data, self._size = "", [], 0
        return SseEvent(kind, "\n".join(data), self.id) if data else None

    def _check(self, size: int) -> None:
        if size > self._most:
            raise SseError(
                f"an event is longer than {self._most:,} bytes; raise max_event_bytes to read it"
            )
