"""The named SQL statements of every concern, and the schema of its tables.

`sql/<concern>.sql` holds the statements that both dialects understand,
`sql/<concern>.<dialect>.sql` the others. Each statement begins with a line `-- name:` and one
comment line; what several statements share is a fragment (see `fragments.py`).

`sql/schema.<concern>.<dialect>.sql` holds the concern's tables in numbered steps
(`-- version: 1`, `-- version: 2` ...). A store records the last step that was applied for each
concern, and every step is applied once. A new concern needs new files here and nothing else.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from harn.errors import StorageVersion
from harn.storage.fragments import Fragment, expand

Dialect = Literal["sqlite", "postgres"]

_ENTRY = re.compile(r"^-- (name|fragment): (\w+)(?:\(([\w, ]+)\))?\n", re.M)
_VERSION = re.compile(r"^-- version: (\d+)\n", re.M)
_TYPES = re.compile(r"^-- types: (.*)$", re.M)
_PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_INSERT = re.compile(r"(INSERT INTO \w+ \([\w\s,]+\)\s+VALUES\s+)\(((?:\?\d+,\s+)*\?\d+)\)")

WIDE = 40
"""How many rows the wide form of an INSERT writes in one step."""

POSTGRES_NOW = "coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
"""The server's time, unless the time of a fake clock is bound."""


class Query(msgspec.Struct, frozen=True):
    """A statement in the form that its engine executes."""

    text: str
    wants_now: bool
    """Whether the statement has the parameter `:now`, the store's time."""
    types: tuple[str, ...] = ()
    """The types of the columns of a `COPY`, from its line `-- types:`."""
    wide: str = ""
    """The same INSERT for `WIDE` rows at once (SQLite only); empty if there is none."""
    takes_number: bool = False
    """Whether the statement takes its producer's number itself (PostgreSQL only).

    The engine binds `:producer`, `:producer_number` (null if it was taken) and `:clock`: a fake
    clock's time, or null.
    """


class Step(msgspec.Struct, frozen=True):
    """One version of one concern's tables."""

    concern: str
    version: int
    script: str


class Statements(dict[str, Query]):
    """The statements of a dialect, by name: each is made ready when it is first asked for.

    A process uses a tenth of them, and a short command would wait for the others.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._bodies, self._fragments = _entries(dialect)

    def __missing__(self, name: str) -> Query:
        body = expand(self._bodies[name], self._fragments)
        return self.setdefault(name, _prepared(body, self._dialect))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the statement *name*, or *default* if the dialect has none of that name."""
        return self[name] if name in self._bodies else default

    def every(self) -> dict[str, Query]:
        """Return all statements of the dialect."""
        return {name: self[name] for name in self._bodies}


@functools.cache
def load_queries(dialect: Dialect) -> Statements:
    """Return the named statements of *dialect*."""
    return Statements(dialect)


@functools.cache
def _entries(dialect: Dialect) -> tuple[dict[str, str], dict[str, Fragment]]:
    """Return the statements and the fragments of *dialect*, by name."""
    bodies: dict[str, str] = {}
    fragments: dict[str, Fragment] = {}
    for text in _sql_files(dialect, is_schema=False).values():
        parts = _ENTRY.split(text)
        for sort, name, parameters, body in zip(*(parts[i::4] for i in range(1, 5)), strict=True):
            if sort == "fragment":
                fragments[name] = Fragment(tuple(parameters.split(", ")), _without_comments(body))
            else:
                bodies[name] = body
    return bodies, fragments


@functools.cache
def load_schema(dialect: Dialect) -> list[Step]:
    """Return every step of the schema, oldest first within a concern."""
    steps = []
    for name, text in _sql_files(dialect, is_schema=True).items():
        pieces = _VERSION.split(text)
        for version, script in zip(pieces[1::2], pieces[2::2], strict=True):
            text = expand(script, _entries(dialect)[1])
            steps.append(Step(name.split(".")[1], int(version), text.strip()))
    return steps


def missing_steps(applied: Mapping[str, int], dialect: Dialect, where: str) -> list[Step]:
    """Return the steps that the store *where* still needs; *applied* has the last step by concern.

    Raises StorageVersion for a store that a newer harn has written; the store stays as it is.
    """
    newest: dict[str, int] = {}
    for step in load_schema(dialect):
        newest[step.concern] = max(newest.get(step.concern, 0), step.version)
    for concern, version in applied.items():
        if version > newest.get(concern, 0):
            raise StorageVersion(
                f"{where} was written by a newer harn (its {concern!r} tables have version "
                f"{version}, this one knows {newest.get(concern, 0)}); upgrade harn"
            )
    return [s for s in load_schema(dialect) if s.version > applied.get(s.concern, 0)]


def _sql_files(dialect: Dialect, *, is_schema: bool) -> dict[str, str]:
    """Read the files of *dialect*, its schema or its statements, in the order of their names."""
    folder = os.path.join(os.path.dirname(__file__), "sql")
    texts = {}
    for file in sorted(os.listdir(folder)):
        concern, *rest = file.split(".")
        if (concern == "schema") is is_schema and rest[-2:] in (["sql"], [dialect, "sql"]):
            with open(os.path.join(folder, file), encoding="utf-8") as opened:
                texts[file] = opened.read()
    return texts


def _prepared(body: str, dialect: Dialect) -> Query:
    text = _without_comments(body)
    wants_now = "now" in _PARAM.findall(text)
    if types := _TYPES.search(body):
        return Query(text, wants_now, tuple(types[1].split()))
    if dialect == "postgres":
        # psycopg takes a single % for the start of a parameter.
        text = _PARAM.sub(_postgres_param, text.replace("%", "%%"))
    plain = _INSERT.fullmatch(text)
    if dialect == "sqlite" and plain:
        row = f"({', '.join('?' * plain[2].count('?'))})"
        return Query(text, wants_now, wide=plain[1] + ", ".join([row] * WIDE))
    return Query(text, wants_now, takes_number="%(producer_number)s" in text)


def _without_comments(body: str) -> str:
    text = "\n".join(line for line in body.splitlines() if not line.startswith("--"))
    return text.strip().removesuffix(";")


def _postgres_param(match: re.Match[str]) -> str:
    return POSTGRES_NOW if match[1] == "now" else f"%({match[1]})s"
