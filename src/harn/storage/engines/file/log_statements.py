"""The log's statements, answered from the topics' files and from what is staged, not by SQL.

An open transaction changes nothing but what it has *staged*. Its own reads see that behind what
the files hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from harn.storage.engines.file.topic_file import BrokenLine, RecordLine
from harn.storage.engines.file.topic_files import TopicFiles
from harn.storage.operations import Ask, Row, Rows


class Staged(msgspec.Struct):
    """What an open transaction wants to become true."""

    rows: list[Row] = []
    heads: dict[str, int] = {}
    cursors: dict[tuple[str, str], int | None] = {}
    trims: dict[str, int] = {}

    def copy(self) -> Staged:
        """Return a savepoint."""
        return Staged(list(self.rows), dict(self.heads), dict(self.cursors), dict(self.trims))

    def rewrites(self, before: Staged) -> bool:
        """Tell whether, since *before*, something asks for more than appending."""
        newest = {row[0]: row[1] for row in self.rows[len(before.rows) :]}
        skips = any(
            newest.get(topic, 0) < head
            for topic, head in self.heads.items()
            if head != before.heads.get(topic)
        )
        return skips or self.trims != before.trims


class LogStatements:
    """Answers the statements of `sql/log.sql` for one directory."""

    def __init__(self, files: TopicFiles, now: Callable[[], int]) -> None:
        self.staged: Staged = Staged()
        self.cursors: dict[tuple[str, str], int] = {}
        """Where consumers stand, by topic and consumer, as of the last commit."""
        self._files = files
        self._now = now
        self._by_name: dict[str, Callable[..., Rows]] = {
            "take_offsets": self._take_offsets,
            "read_events": self._read_events,
            "read_records": self._read_records,
            "topic_head": self._topic_head,
            "list_topics": self._list_topics,
            "first_offset": self._first_offset,
            "first_offset_since": self._first_offset_since,
            "trim_events": self._trim_events,
            "raise_head": self._raise_head,
            "move_cursor": self._move_cursor,
            "read_cursor": self._read_cursor,
            "lowest_cursor": self._lowest_cursor,
            "drop_cursor": self._drop_cursor,
            "list_cursors": self._list_cursors,
            "freeze": list,
            "now": lambda: [(now(),)],
        }

    def execute(self, asked: Ask) -> Rows | None:
        """Carry one statement of the log out; None if it is not one."""
        if asked.name == "insert_events":
            assert asked.rows is not None
            self.staged.rows.extend(asked.rows)
            return []
        statement = self._by_name.get(asked.name)
        return None if statement is None else statement(**asked.params)

    def names(self) -> list[str]:
        """Return every topic."""
        return sorted(self._files.names() | set(self.staged.heads))

    def head(self, topic: str) -> int:
        """Return the newest offset of *topic*."""
        staged = self.staged.heads.get(topic)
        return self._files.head(topic) if staged is None else staged

    def lines(self, topic: str, after: int) -> Iterator[RecordLine | BrokenLine]:
        """Yield what is on disk, then what this transaction has staged, after an offset."""
        yield from self._files.lines(topic, after)
        for name, id, kind, payload, headers, at in self.staged.rows:
            if name == topic and id > after:
                raw = msgspec.Raw
                yield RecordLine(id, 1 << 62, kind, at, raw(headers), raw(payload))

    # -- records -------------------------------------------------------------------------------

    def _take_offsets(self, topic: str, count: int, largest: int) -> Rows:
        head = self.staged.heads[topic] = self.head(topic) + count
        return [(topic, head, self._now())]

    def _raise_head(self, topic: str, head: int) -> Rows:
        head = self.staged.heads[topic] = max(self.head(topic), head)
        return [(topic, head)]

    def _topic_head(self, topic: str) -> Rows:
        if topic in self.staged.heads or self._files.has(topic):
            return [(self.head(topic),)]
        return []

    def _list_topics(self) -> Rows:
        return [(topic, self.head(topic)) for topic in self.names()]

    def _read_events(self, topic: str, after: int, limit: int, budget: int) -> Rows:
        return [row for _, row in self._page(topic, after, limit, budget)]

    def _read_records(self, topic: str, after: int, limit: int, budget: int) -> Rows:
        return [(seq, *row) for seq, row in self._page(topic, after, limit, budget)]

    def _page(self, topic: str, after: int, limit: int, budget: int) -> Iterator[tuple[int, Row]]:
        if limit <= 0:
            return
        lines = self.lines(topic, after)
        try:
            for line in lines:
                row = line.row()
                yield line.seq if isinstance(line, RecordLine) else 0, row
                limit, budget = limit - 1, budget - len(row[2])
                if limit <= 0 or budget <= 0:
                    return
        finally:
            lines.close()  # type: ignore[attr-defined]

    def _first_offset(self, topic: str) -> Rows:
        return [(row[0],) for _, row in self._page(topic, 0, 1, 1)]

    def _first_offset_since(self, topic: str, since: int, below: int) -> Rows:
        for line in self.lines(topic, 0):
            if isinstance(line, RecordLine) and line.id >= below:
                break
            if isinstance(line, RecordLine) and line.at >= since:
                return [(line.id,)]
        return []

    def _trim_events(self, topic: str, below: int, at_most: int) -> Rows:
        below = max(below, self.staged.trims.get(topic, 0))
        gone = []
        for line in self.lines(topic, self.staged.trims.get(topic, 0)):
            near = line.id if isinstance(line, RecordLine) else line.near + 1
            if near >= below:
                break
            gone.append((near,))
        if gone:
            self.staged.trims[topic] = below
        return gone

    # -- cursors -------------------------------------------------------------------------------

    def _move_cursor(self, topic: str, consumer: str, position: int) -> Rows:
        found = max(position, self._cursor(topic, consumer) or 0)
        self.staged.cursors[topic, consumer] = found
        return [(found,)]

    def _cursor(self, topic: str, consumer: str) -> int | None:
        key = topic, consumer
        return self.staged.cursors[key] if key in self.staged.cursors else self.cursors.get(key)

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
        all_of_them: dict[tuple[str, str], int | None] = {**self.cursors, **self.staged.cursors}
        return [
            (topic, consumer, place)
            for (topic, consumer), place in sorted(all_of_them.items())
            if place is not None
        ]
