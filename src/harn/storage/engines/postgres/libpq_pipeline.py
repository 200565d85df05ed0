"""Several statements sent to PostgreSQL in one round trip, with libpq's pipeline mode.

A cursor of psycopg takes several times as long as the server needs for a small statement. Here a
statement is prepared once on its connection, values are encoded by their types, and all statements
of a run share one round trip. psycopg still connects, makes the errors and reads the rows.
"""

from __future__ import annotations

import functools
import re
import select
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any

from psycopg.adapt import Transformer
from psycopg.errors import OperationalError, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format

from harn.storage.engines.postgres.arrays import ENCODED, Encoded
from harn.storage.operations import Rows

if TYPE_CHECKING:
    from psycopg import Connection
    from psycopg.pq.abc import PGresult

Statement = tuple[str, Mapping[str, Any]]
"""An SQL text with parameters `%(name)s`, and their values by name."""

_Key = tuple[str, tuple[type, ...]]
_PARAM = re.compile(r"%\((\w+)\)s|%%")
_OUT = select.POLLIN | select.POLLOUT
_ERRORS = (ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE)
_bigint = Struct(">q").pack
_double = Struct(">d").pack


class Pipeline:
    """Sends statements on one connection, and knows which ones are prepared there."""

    def __init__(self, connection: Connection[Any], *, is_own: bool) -> None:
        self.is_own = is_own
        """Whether the server's session is ours alone, so that prepared statements stay there.

        A pooler may give each transaction another session.
        """
        self._pgconn = connection.pgconn
        self._reader = Transformer(connection)
        self._known: dict[_Key, bytes] = {}
        self._prepared_count = 0
        self._left: dict[_Key, bytes] | None = None
        """What was prepared by statements whose results are not read yet; None without such."""
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)

    def run(
        self, statements: Sequence[Statement], afterwards: Sequence[Statement] = ()
    ) -> list[PGresult]:
        """Send *statements* and return their results; raise the first error among them.

        The statements *afterwards* are sent behind them, as a transaction of their own; their
        results and errors are ignored, and read by `finish`.
        """
        self.finish()
        # All are encoded before the first is sent, so a value that cannot be encoded sends nothing.
        encoded = [_encoded(text, params) for text, params in statements]
        more = [_encoded(text, params) for text, params in afterwards]
        pgconn = self._pgconn
        pgconn.enter_pipeline_mode()
        fresh: dict[_Key, bytes] = {}
        answers: list[bool] = []
        for each in encoded:
            if self._send(*each, fresh):
                answers.append(False)
            answers.append(True)
        pgconn.pipeline_sync()
        fresh_more: dict[_Key, bytes] = {}
        for each in more:
            self._send(*each, fresh_more)
        if more:
            pgconn.pipeline_sync()
        self._push()
        results = self._collect()
        self._left = fresh_more if more else None
        if not more:
            pgconn.exit_pipeline_mode()
        elif not self.is_own:
            self.finish()
        for result in results:
            if result.status in _ERRORS:
                self.finish()
                raise error_from_result(result, "utf-8")
        self._known.update(fresh)
        return [result for result, wanted in zip(results, answers, strict=True) if wanted]

    def finish(self) -> None:
        """Read the results of what was sent afterwards, before the connection is used otherwise.

        Not with the others: no caller should wait for what it does not need.
        """
        fresh, self._left = self._left, None
        if fresh is None:
            return
        ignored = self._collect()
        self._pgconn.exit_pipeline_mode()
        if not any(result.status in _ERRORS for result in ignored):
            self._known.update(fresh)

    def rows(self, result: PGresult) -> Rows:
        """Read the rows of *result*."""
        if not result.ntuples:
            return []
        self._reader.set_pgresult(result, set_loaders=True, format=Format.BINARY)
        return self._reader.load_rows(0, result.ntuples, tuple)

    def _send(
        self,
        command: bytes,
        key: _Key,
        data: list[bytes | None],
        fresh: dict[_Key, bytes],
    ) -> bool:
        """Pass one statement to libpq; tell whether it had to be prepared first."""
        formats = (Format.BINARY,) * len(data)
        if not self.is_own or not data:  # to prepare a plain COMMIT saves nothing
            types = list(map(_oid, key[1]))
            self._pgconn.send_query_params(command, data, types, formats, Format.BINARY)
            return False
        name = self._known.get(key) or fresh.get(key)
        is_new = name is None
        if name is None:
            self._prepared_count += 1
            name = fresh[key] = b"harn_%d" % self._prepared_count
            self._pgconn.send_prepare(name, command, [_oid(kind) for kind in key[1]])
        self._pgconn.send_query_prepared(name, data, formats, Format.BINARY)
        return is_new

    def _push(self) -> None:
        """Send everything that libpq has buffered.

        Reads meanwhile: the server stops reading while its own results are not read.
        """
        pgconn = self._pgconn
        while pgconn.flush():
            self._poll.modify(pgconn.socket, _OUT)
            for _, event in self._poll.poll():
                if event & ~select.POLLOUT:
                    pgconn.consume_input()
            self._poll.modify(pgconn.socket, select.POLLIN)

    def _collect(self) -> list[PGresult]:
        """Wait for all results: one of each statement, and one more if it was prepared first."""
        pgconn = self._pgconn
        results: list[PGresult] = []
        while True:
            while pgconn.is_busy():
                self._poll.poll()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:  # the end of a statement's results, or of the connection
                if pgconn.status != ConnStatus.OK:
                    raise OperationalError("the connection to PostgreSQL was lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return results
            else:
                results.append(result)


@functools.cache
def numbered(text: str) -> tuple[bytes, tuple[str, ...]]:
    """Return *text* with its parameters as `$1`, `$2` ..., and their names in that order.

    >>> numbered("SELECT %(a)s + %(b)s, %(a)s")
    (b'SELECT $1 + $2, $1', ('a', 'b'))
    """
    names: dict[str, int] = {}

    def number(match: re.Match[str]) -> str:
        if match[1] is None:
            return "%"
        return f"${names.setdefault(match[1], len(names) + 1)}"

    return _PARAM.sub(number, text).encode(), tuple(names)


def _encoded(text: str, params: Mapping[str, Any]) -> tuple[bytes, _Key, list[bytes | None]]:
    """Return the command with numbered parameters, the key of its prepared form, and its values."""
    command, names = numbered(text)
    values = list(map(params.__getitem__, names))
    kinds = tuple(map(type, values))
    data = [
        value if kind in _AS_IT_IS else _ENCODERS[kind](value)
        for kind, value in zip(kinds, values, strict=True)
    ]
    return command, (text, kinds), data


def _oid(kind: type) -> int:
    return kind.oid if issubclass(kind, Encoded) else _OIDS[kind]


_AS_IT_IS: frozenset[type] = ENCODED | {bytes, type(None)}
_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    int: _bigint,
    str: str.encode,
    float: _double,
    bool: lambda value: b"\1" if value else b"\0",
}
_OIDS: dict[type, int] = {int: 20, str: 25, bytes: 17, float: 701, bool: 16, type(None): 0}
