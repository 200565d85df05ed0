"""What the statements of the queues read: keyed rows and short ranges, not the settled jobs.

A table is *walked* if a statement reads it by fewer columns than the index has that finds its rows.
Statements that may do so stand in `WALKS`, each with the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import apsw
import psycopg
import pytest

from harn import Runtime, worker_queue
from harn.storage.engines import migrate
from harn.storage.engines.postgres.libpq_pipeline import numbered
from harn.storage.queries import Dialect, Query, load_queries

CONCERNS = ("jobs", "steps", "state", "outbox", "leases", "pools")

WHOLE = "it reads, writes or empties the whole index: rebuild and verify"
REKEY = "the attribute that is the key of the jobs changed, which is rare"
SHARES = "keys of a queue: idle ones are dropped, so they are few"
PEOPLE = "queues, leases and consumers are as many as an operator can name"
WANTED = "the jobs that it reads are what was asked for"
SETTLED = (WHOLE, REKEY, WANTED)
"""The reasons that are good enough to read settled jobs, too: there may be millions."""
WALKS = {
    **dict.fromkeys(
        ("clear_queues", "clear_shares", "clear_jobs", "clear_dedupe", "clear_triggers"), WHOLE
    ),
    **dict.fromkeys(
        ("dump_queues", "dump_shares", "dump_jobs", "dump_dedupe", "dump_triggers"), WHOLE
    ),
    **dict.fromkeys(("clear_tickets", "dump_tickets", "clear_steps", "dump_steps"), WHOLE),
    **dict.fromkeys(("clear_state", "dump_state"), WHOLE),
    "oldest_state": "a trim of the stored values, which is rare",
    **dict.fromkeys(("clear_pools", "dump_pools", "clear_cancels", "dump_cancels"), WHOLE),
    **dict.fromkeys(("forget_shares", "unsettled_origins", "count_shares"), REKEY),
    **dict.fromkeys(("held_back_keys", "apply_cap", "queue_totals", "share_rows"), SHARES),
    **dict.fromkeys(("reset_credit", "work_of_shares", "forget_nodes", "node_rows"), SHARES),
    "children": "children whose turn it is next, no more than can be served",
    "drop_idle_nodes": SHARES,
    **dict.fromkeys(("clear_nodes", "dump_nodes"), WHOLE),
    "shares_ahead": "keys whose turn it is next, no more than can be served",
    "drop_idle_shares": SHARES,
    **dict.fromkeys(("queue_names", "add_queue", "triggers_seen", "list_leases"), PEOPLE),
    **dict.fromkeys(("expired_consumers", "next_consumer_expiry", "forget_consumers"), PEOPLE),
    **dict.fromkeys(("list_consumers", "take_expired_consumers"), PEOPLE),
    "queues_that_wait": "one job of each queue, and one of any",
    "queues_in_outbox": "the first job of each queue",
    "outbox_store": PEOPLE,
    **dict.fromkeys(("list_pools", "worker_queue_names"), PEOPLE),
    **dict.fromkeys(("pool_totals", "pool_keys_by_name"), SHARES),
    **dict.fromkeys(("pool_seen", "pool_names_seen"), SHARES),
    "pool_queued": "the tasks of a ring buffer, no more than its capacity",
    "pool_turns_seen": "keys whose turn it is next, no more than can be served",
    "pool_keys_by_turn": "keys whose turn it is next, no more than can be served",
    **dict.fromkeys(
        ("page_of_all", "oldest_jobs", "newest_job", "forget_jobs", "forget_steps"), WANTED
    ),
    "forget_cancels": WANTED,
    "open_keys": "a few keys that can be served, whichever come first",
    "queues_in_sight": "one key of each queue that can be served, whichever comes first",
    "queue_jobs_ahead": "ready jobs only, and as many as are shown",
    **dict.fromkeys(
        ("open_job_of", "open_job_in_tree"),
        "ready jobs only, until one of a known function is found",
    ),
}
"""Statements that may walk, and why."""

KEYS = {
    "queues": {"queue_id"},
    "pools": {"queue_id"},
    "pool_cancels": {"queue_id", "job_id"},
    "jobs": {"queue_id", "id"},
    "jobs_of_key": {"queue_id", "key", "priority"},
    "jobs_ready": {"queue_id", "priority"},
    "jobs_scheduled": {"queue_id"},
    "jobs_in_flight": {"queue_id"},
    "jobs_by_state": {"queue_id", "state"},
    "jobs_by_tenant": {"queue_id", "tenant_id", "state"},
    "shares": {"queue_id", "key"},
    "shares_in_turn": {"queue_id", "turn"},
    "shares_by_age": {"queue_id"},
    "shares_idle": {"queue_id"},
    "share_nodes": {"queue_id", "key"},
    "share_nodes_in_turn": {"queue_id", "parent"},
    "share_nodes_idle": {"queue_id"},
    "job_dedupe": {"queue_id", "tenant_id", "dedupe_key"},
    "job_dedupe_by_job": {"queue_id"},
    "job_tickets": {"queue_id", "ticket"},
    "job_tickets_by_job": {"queue_id"},
    "queue_triggers": {"queue_id", "trigger_id"},
    "job_steps": {"queue_id", "job_id"},
    "state_keys": {"space", "key"},
    "state_live": {"space"},
    "events": {"topic_id", "id"},
    "topics": {"name"},
    "leases": {"name"},
    "consumers": {"lease"},
    "outbox": {"queue"},
    "outbox_store": {"id"},
    "outbox_by_ticket": {"ticket"},
    "outbox_commits": {"queue"},
    "outbox_in_order": {"queue"},
}
"""The columns that must be given for a read by an index; a table's own name is its primary key."""


@dataclass(frozen=True)
class Read:
    """One table or index that a plan reads, and the columns that are given as equal."""

    index: str
    given: frozenset[str]

    @property
    def is_walk(self) -> bool:
        return not KEYS[self.index] <= self.given


def statements(dialect: Dialect) -> dict[str, Query]:
    """Return the statements of the queues, the outbox and the leases."""
    found: dict[str, Query] = {}
    for concern in CONCERNS:
        for name in (f"{concern}.sql", f"{concern}.{dialect}.sql"):
            file = files("harn.storage") / "sql" / name
            if file.is_file():
                names = re.findall(r"^-- name: (\w+)", file.read_text("utf-8"), re.M)
                found |= {each: load_queries(dialect)[each] for each in names}
    return found


# -- SQLite ----------------------------------------------------------------------------------------

ALIASES = {
    "j": "jobs",
    "s": "shares",
    "d": "job_dedupe",
    "t": "job_tickets",
    "q": "queues",
    "n": "share_nodes",
}
ALIASES |= {"e": "events", "p": "job_steps", "c": "pool_cancels"}
_LINE = re.compile(r"(SCAN|SEARCH) (\w+)(.*)")
_USED = re.compile(r"USING (?:COVERING )?(?:INTEGER )?(?:INDEX (\w+)|PRIMARY KEY)(?: \((.*)\))?")


def sqlite_reads(db: apsw.Connection, text: str) -> Iterator[Read]:
    named = dict.fromkeys(re.findall(r":([a-z_]+)", text))
    places = max((int(each) for each in re.findall(r"\?(\d+)", text)), default=0)
    for *_, line in db.execute(f"EXPLAIN QUERY PLAN {text}", named or (None,) * places):
        parts = _LINE.match(line)
        table = ALIASES.get(parts[2], parts[2]) if parts else ""
        if not parts or table not in KEYS:
            continue
        used = _USED.search(parts[3])
        index = used[1] if used and used[1] in KEYS else table
        given = re.findall(r"(\w+)=\?", used[2] or "") if used else []
        if "rowid" in given:
            given.append("queue_id")
        if index == "queues" and "name" in given:
            given.append("queue_id")
        yield Read(index, frozenset(given) if parts[1] == "SEARCH" else frozenset())


def sqlite_plans() -> dict[str, list[Read]]:
    db = apsw.Connection(":memory:")
    migrate(db, "a test")
    return {
        name: list(sqlite_reads(db, query.text)) for name, query in statements("sqlite").items()
    }


# -- PostgreSQL ------------------------------------------------------------------------------------


def postgres_reads(plan: dict[str, Any]) -> Iterator[Read]:
    for child in plan.get("Plans", ()):
        yield from postgres_reads(child)
    index = plan.get("Index Name", plan.get("Relation Name", ""))
    if plan["Node Type"] in ("ModifyTable", "Bitmap Heap Scan") or "Index Name" not in plan:
        if plan["Node Type"] == "Seq Scan":
            yield Read(index, frozenset())
        return
    index = re.sub(r"_(pkey|name_key)$", "", index)
    given = re.findall(r"\(*(?:\w+\.)?(\w+)\)?(?:::\w+)? = ", plan.get("Index Cond", ""))
    if index == "queues" and "name" in given:
        given.append("queue_id")
    yield Read(index, frozenset(given))


FILL = """
INSERT INTO queues (queue_id, name) SELECT n, 'q' || n FROM generate_series(11, 13) AS n;
INSERT INTO shares (queue_id, key, turn, ready)
SELECT 11, 't' || n, 1, 10 FROM generate_series(0, 9) AS n;
INSERT INTO share_nodes
SELECT 11, 't' || n, 'p' || n % 50, 1, 0, 1, 0, 0, 0, NULL, 0 FROM generate_series(1, 5000) AS n;
INSERT INTO topics (topic_id, name, head, largest) OVERRIDING SYSTEM VALUE
SELECT n, 'worker.q' || n, 5000, 0 FROM generate_series(11, 13) AS n;
INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, wake_at, max_attempts, tenant_id)
SELECT 11, n, 't' || n % 10, 1,
    CASE WHEN n < 4600 THEN 4 WHEN n < 4900 THEN 0 WHEN n < 4950 THEN 1 ELSE 2 END, n,
    CASE WHEN n >= 4900 THEN n END, 3, 't' || n % 10 FROM generate_series(1, 5000) AS n;
INSERT INTO job_dedupe SELECT 11, 't', 'd' || n, n FROM generate_series(1, 1000) AS n;
INSERT INTO job_tickets SELECT 11, 'k' || n, n FROM generate_series(1, 1000) AS n;
INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
SELECT 11, n, 'job', '{}', '{}', n FROM generate_series(1, 5000) AS n;
INSERT INTO outbox_commits (queue, xact) SELECT 'q11', 'x' || n FROM generate_series(1, 1000) AS n;
INSERT INTO outbox (queue, xact, ticket, body, headers, priority, max_attempts)
SELECT 'q11', 'x' || n % 1000, 'k' || n, '1', '{}', 1, 3 FROM generate_series(1, 3000) AS n;
"""


NUMBERS = (
    "queue_id id limit cap round deferrals at now below before since response turn wanted depth"
    " priority state to keep trimmed job_id pid ttl epoch budget selected deferred"
).split()
"""Parameters that the driver sends as numbers."""


def explained(text: str) -> bytes:
    """Return *text* as a question for its generic plan, with the types that the driver sends."""
    typed = re.sub(rf"(%\((?:{'|'.join(NUMBERS)})\)s)(?!::)", r"\1::bigint", text)
    return b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + numbered(typed)[0]


@asynccontextmanager
async def planned(url: str) -> AsyncIterator[psycopg.Connection[Any]]:
    """Open a connection to a new store that plans as the driver's do."""
    async with Runtime(storage=url):
        await worker_queue("other").enqueue(1)
    dsn, _, schema = url.partition("?schema=")
    limits = {"path": f"{schema}, pg_catalog", "statement_ms": "0", "lock_ms": "0", "idle_ms": "0"}
    with psycopg.connect(dsn, autocommit=True) as db:
        db.execute(load_queries("postgres")["set_limits"].text, {**limits, "local": False})
        yield db


def postgres_plans(db: psycopg.Connection[Any]) -> dict[str, list[Read]]:
    found = {}
    for name, query in statements("postgres").items():
        if query.types or "{schema}" in query.text:  # a COPY, and a call of a function
            continue
        result = db.pgconn.exec_(explained(query.text))
        assert result.ntuples, (name, result.error_message)
        [document] = json.loads(result.get_value(0, 0) or b"")
        found[name] = list(postgres_reads(document["Plan"]))
    return found


JOB = "jobs", frozenset({"queue_id", "id"})
KEYED = dict.fromkeys(
    ("job_of", "jobs_of", "settled_among", "ack_held", "ack_jobs", "ack_one", "jobs_by_id"), JOB
)
KEYED |= dict.fromkeys(("move_jobs", "settle_jobs", "claim_jobs"), JOB)
KEYED |= {"clear_outbox": ("outbox", frozenset({"queue", "xact", "seq"}))}

# -- what holds ------------------------------------------------------------------------------------


def walks(plans: dict[str, list[Read]]) -> dict[str, list[Read]]:
    found = {name: [each for each in reads if each.is_walk] for name, reads in plans.items()}
    return {
        name: reads
        for name, reads in found.items()
        if reads and (name not in WALKS or (reads_settled(reads) and WALKS[name] not in SETTLED))
    }


def reads_settled(walked: list[Read]) -> bool:
    return any(each.index == "jobs" for each in walked)


def test_no_statement_of_sqlite_walks_a_table_without_a_reason() -> None:
    assert walks(sqlite_plans()) == {}


async def test_no_statement_of_postgres_walks_a_table_without_a_reason(postgres_url: str) -> None:
    async with planned(postgres_url) as db:
        db.execute(FILL)
        db.execute("ANALYZE")

        assert walks(postgres_plans(db)) == {}


async def test_a_plan_that_postgres_made_while_the_store_was_empty_is_good_later(
    postgres_url: str,
) -> None:
    async with planned(postgres_url) as db:
        plans = postgres_plans(db)

    assert walks(plans) == {}
    for name, (table, columns) in KEYED.items():
        reads = {each for each in plans[name] if each.index.startswith(table)}
        assert {(each.index, each.given) for each in reads} == {(table, columns)}, name


@pytest.mark.parametrize(
    "name", ["job_of", "jobs_of", "settled_among", "ack_jobs", "jobs_by_id", "move_jobs"]
)
def test_some_jobs_are_found_by_their_ids(name: str) -> None:
    reads = [each for each in sqlite_plans()[name] if each.index.startswith("jobs")]

    assert reads == [Read("jobs", frozenset({"queue_id", "id"}))]


def test_every_reason_is_one_of_a_statement_that_exists() -> None:
    assert set(WALKS) <= {*statements("sqlite"), *statements("postgres")}


@pytest.mark.parametrize("name", ["insert_jobs", "claim_jobs", "settle_jobs", "restore_jobs"])
def test_a_job_is_written_to_sqlite_without_a_temporary_table_for_its_indexes(name: str) -> None:
    db = apsw.Connection(":memory:")
    migrate(db, "a test")
    text = load_queries("sqlite")[name].text
    places = max(int(each) for each in re.findall(r"\?(\d+)", text))

    steps = [row[1] for row in db.execute(f"EXPLAIN {text}", (None,) * places)]

    assert "OpenEphemeral" not in steps


def test_a_prefix_of_a_million_stored_values_is_one_range_of_an_index_in_sqlite() -> None:
    db = apsw.Connection(":memory:")
    migrate(db, "a test")
    named = dict.fromkeys(("space", "first", "last", "limit"))

    text = load_queries("sqlite")["list_state"].text
    [(*_, line)] = db.execute(f"EXPLAIN QUERY PLAN {text}", named)

    wanted = "COVERING INDEX state_live (space=? AND key>? AND key<?)"
    assert line == f"SEARCH state_keys USING {wanted}"


async def test_a_prefix_of_a_million_stored_values_is_one_range_of_an_index_in_postgres(
    postgres_url: str,
) -> None:
    async with planned(postgres_url) as db:
        result = db.pgconn.exec_(explained(load_queries("postgres")["list_state"].text))
        [document] = json.loads(result.get_value(0, 0) or b"")

    [scan] = document["Plan"]["Plans"]
    assert (scan["Node Type"], scan["Index Name"]) == ("Index Only Scan", "state_live")
    assert [each in scan["Index Cond"] for each in ("space = ", "key >= ", "key < ")] == [True] * 3
