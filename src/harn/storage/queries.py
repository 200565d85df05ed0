"""The SQL of every concern, by name, and the schema that each concern brings.

`sql/<concern>.sql` holds what both dialects understand, `sql/<concern>.<dialect>.sql` the rest;
each query opens with `-- name:` and one comment line. `sql/schema.<concern>.<dialect>.sql` holds
the concern's tables in numbered steps (`-- version: 1`, `-- version: 2` ...): a store remembers
how far it has come for each concern, and every step is applied once. A new concern is new files
here and nothing else.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from harn.errors import StorageVersion

Dialect = Literal["sqlite", "postgres"]

_NAME = re.compile(r"^-- name: (\w+)\n", re.M)
_VERSION = re.compile(r"^-- version: (\d+)\n", re.M)
_TYPES = re.compile(r"^-- types: (.*)$", re.M)
_PARAM = re.compile(r"(?<![:\w]):([a-z_]+)")
_INSERT = re.compile(r"(INSERT INTO \w+ \([\w, ]+\) VALUES )\(((?:\?\d+, )*\?\d+)\)")

WIDE = 40

POSTGRES_NOW = "coalesce(%(now)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)"
"""The server's time, unless a fake clock's is bound."""


@dataclass(frozen=True, slots=True)
class Query:
    """A statement as its engine takes it, and whether it asks for the store's time.

    A `COPY` has a line `-- types:`, which names the types of its columns.
    """

    text: str
    wants_now: bool
    types: tuple[str, ...] = ()
    wide: str = ""
    """A plain INSERT of SQLite's, written for `WIDE` rows at once: one step instead of so many."""


@dataclass(frozen=True, slots=True)
class Step:
    """One version of one concern's tables."""

    concern: str
    version: int
    script: str


@functools.cache
def load_queries(dialect: Dialect) -> dict[str, Query]:
    """Return every named statement of *dialect*."""
    found: dict[str, Query] = {}
    for name, text in sorted(_sql_files().items()):
        concern, *rest = name.removesuffix(".sql").split(".")
        if concern == "schema" or rest not in ([], [dialect]):
            continue
        parts = _NAME.split(text)
        for query, body in zip(parts[1::2], parts[2::2], strict=True):
            found[query] = _prepared(body, dialect)
    return found


@functools.cache
def load_schema(dialect: Dialect) -> list[Step]:
    """Return every step of every concern, oldest first within a concern."""
    steps = []
    for name, text in sorted(_sql_files().items()):
        parts = name.removesuffix(".sql").split(".")
        if parts[0] != "schema" or parts[-1] != dialect:
            continue
        pieces = _VERSION.split(text)
        for version, script in zip(pieces[1::2], pieces[2::2], strict=True):
            steps.append(Step(parts[1], int(version), script.strip()))
    return steps


def missing_steps(applied: Mapping[str, int], dialect: Dialect, where: str) -> list[Step]:
    """Choose the steps that a store which has come as far as *applied* still needs.

    A store that is ahead of us was written by a newer harn and is refused, untouched.
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


def _sql_files() -> dict[str, str]:
    folder = files("harn.storage") / "sql"
    return {
        item.name: item.read_text("utf-8")
        for item in folder.iterdir()
        if item.name.endswith(".sql")
    }


def _prepared(body: str, dialect: Dialect) -> Query:
    text = "\n".join(line for line in body.splitlines() if not line.startswith("--"))
    text = text.strip().removesuffix(";")
    wants_now = "now" in _PARAM.findall(text)
    if types := _TYPES.search(body):
        return Query(text, wants_now, tuple(types[1].split()))
    if dialect == "postgres":
        text = _PARAM.sub(_postgres_param, text.replace("%", "%%"))
    plain = _INSERT.fullmatch(text)
    if dialect == "sqlite" and plain:
        row = f"({', '.join('?' * plain[2].count('?'))})"
        return Query(text, wants_now, wide=plain[1] + ", ".join([row] * WIDE))
    return Query(text, wants_now)


def _postgres_param(match: re.Match[str]) -> str:
    return POSTGRES_NOW if match[1] == "now" else f"%({match[1]})s"
