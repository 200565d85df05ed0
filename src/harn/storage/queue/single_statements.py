"""The usual operations on a queue in one statement each, for an engine that has such statements.

On PostgreSQL they are functions of the schema (`sql/schema.work.postgres.sql`): one opens a queue,
acks jobs and reads what a scheduler looks at first, the other writes all that was decided. Neither
decides anything. Where there is no such statement, or anything is unusual, the same is done step by
step, by the statements that every engine has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any

import msgspec

from harn.storage.contract import Draft, topics_of
from harn.storage.log import append
from harn.storage.operations import Ask, Operation, Row, Rows, ask_ahead
from harn.storage.queue.job_index import ACK_HELD
from harn.storage.queue.queue_row import (
    CLAIM_COLUMNS,
    SERVE_COLUMNS,
    Holding,
    QueueState,
    save_queue,
    saved_row,
    write_holding,
)
from harn.topics import queue_topics

LOOK = "work_look"
APPLY = "work_apply"
COLUMNS_OF_QUEUE = 19
"""How many of the values about a queue are the columns that `open_queue` reads."""

_about = msgspec.json.Decoder(list[Any])


def look_at_once(
    queue: str, acks: Mapping[int, str], look: Ask | None
) -> Operation[QueueState | None]:
    """Open *queue*, ack jobs whose claims (by job id) still hold, and ask *look*, in one statement.

    None if there is no such queue, or no such statement. The state has the answers as those to
    questions that were asked ahead.
    """
    topics = queue_topics(queue)
    rows: Rows | None = yield ask_ahead(
        LOOK,
        queue=queue,
        jobs=topics.jobs,
        claims=topics.claims,
        responses=topics.responses,
        ids=[*acks],
        claim_ids=[*acks.values()],
        look="" if look is None else look.name,
        most=0 if look is None else look.params.get("limit", 0),
        wanted=0 if look is None else look.params["wanted"],
    )
    if not rows or rows[0][0] is None:
        return None
    about = _about.decode(rows[0][0])
    state = QueueState(queue, *about[:COLUMNS_OF_QUEUE])
    state.claimed, state.responded, acked, has_looked = about[COLUMNS_OF_QUEUE:]
    if acked:
        state.ahead[ACK_HELD] = [(id, None, state.now) for id in acked]
    if has_looked and look is not None:
        state.ahead[look.name] = _seen(rows, look)
    return state


def _seen(rows: Rows, look: Ask) -> Rows:
    """Return the answer to *look* among *rows*, the first of which is about the queue."""
    if look.name == "queue_heads":
        return [(*row[10:13], row[1], *row[13:15], row[16]) for row in rows[1:]]
    return [row[1:] for row in rows[1:]]


def write_at_once(
    state: QueueState, drafts: Sequence[Draft]
) -> Operation[list[tuple[int, int]] | None]:
    """Write claims that are decided, the queue's row and *drafts*, in one statement.

    Return the offset and time of each draft, where the engine tells them without being asked.
    """
    params = {"drafts": drafts, "places": False}
    fill = partial(_columns, state, drafts)
    placed: Any = yield Ask(APPLY, params, fill=fill, is_optional=True)
    if placed is None:
        yield from write_holding(state)
        yield from save_queue(state)
        placed = yield from append(drafts, places=False)
    return placed or None


def _columns(state: QueueState, drafts: Sequence[Draft]) -> Mapping[str, Any]:
    """Return the parameters of the statement that writes what *state* holds, and *drafts*."""
    holding, state.holding = state.holding or Holding((), ()), None
    return {
        **saved_row(state),
        **_claim_columns(holding.claims),
        **_by_name("share", SERVE_COLUMNS, holding.shares),
        **_record_columns(drafts),
        "at_ms": state.now,
        "deferrals": state.deferrals,
    }


def _claim_columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the columns of claims; those of one claimer differ in four of them."""
    columns = dict(zip(CLAIM_COLUMNS, zip(*rows, strict=True), strict=True)) if rows else {}
    alike = ("consumer", "wake_at", "lease")
    return {
        **{f"claim_{name}": columns[name][0] if rows else None for name in alike},
        "claim_id": columns.get("id", ()),
        "claim_claim_id": columns.get("claim_id", ()),
        "claim_claim_round": without_nulls(columns.get("claim_round", ())),
        "claim_charged": without_nulls(columns.get("charged", ())),
    }


def _by_name(prefix: str, names: Sequence[str], rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    """Return the columns of *rows*, by their names after a prefix."""
    columns = zip(*rows, strict=True) if rows else repeat(())
    return {f"{prefix}_{name}": each for name, each in zip(names, columns, strict=False)}


def without_nulls(column: Sequence[Any]) -> Sequence[Any]:
    """Return *column*, or nothing if all of it is None: PostgreSQL fills it up with nulls."""
    return () if column.count(None) == len(column) else column


def _record_columns(drafts: Sequence[Draft]) -> dict[str, Any]:
    """Return the columns of an append in runs: records that differ in their payloads alone.

    >>> [a, b] = Draft("t", "k", b"1", b"{}"), Draft("t", "k", b"2", b"{}")
    >>> columns = _record_columns([a, b, Draft("t", "other", b"3", b"{}")])
    >>> columns["kind"], columns["first"], columns["last"], columns["back"]
    (['k', 'other'], [1, 3], [2, 3], [2, 0])
    """
    runs: list[tuple[Any, ...]] = []
    payloads: list[bytes] = []
    topics = topics_of(drafts)
    for topic, count, _ in topics:
        end = len(payloads) + count
        mine = drafts if len(topics) == 1 else [item for item in drafts if item.topic == topic]
        for about, run in groupby(mine, attrgetter("kind", "headers", "at_ms")):
            first = len(payloads) + 1
            payloads += [item.payload for item in run]
            runs.append((topic, first, len(payloads), end - first, *about))
    names = ("topic", "first", "last", "back", "kind", "headers", "at")
    return {
        **dict(
            zip(("topics", "counts", "largest"), map(list, zip(*topics, strict=True)), strict=True)
        ),
        **dict(zip(names, map(list, zip(*runs, strict=True)), strict=True)),
        "payload": payloads,
    }
