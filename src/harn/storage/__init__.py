"""The store: one event log with indexes beside it, on SQLite, PostgreSQL, files or in memory.

`runtime.service(Store)` is a runtime's open store. `store.run(recipe)` carries out an operation,
a generator of named statements (see `operations.py`), in a transaction of its own; the engines
differ in how they drive it and in nothing that can be seen.

    queue/           jobs: enqueue, claim, settle
    triggers/        events on their way, dedupe keys, schedules, gates, circuits
    limits/          rate-limit buckets
    state/           stored values by key
    leases/          names with one holder, and the thread that renews what would expire

    log/             append, read, trim, export, rebuild

    store.py         the open engine of a runtime, and the same engine opened again for a thread

    engines/         one folder for each kind of store, and how it is opened

    contract.py      records, and what an engine must do
    operations.py    the generators, and the loop that drives one
    indexes.py       how a fold of the log plugs in
    queries.py       the SQL of every concern, by name: the files in sql/
    fragments.py     pieces of SQL that several statements share
    codec.py         what may enter the log; strict_json.py, what is JSON and what is not
    jsonl.py         a file of checksummed lines
    url.py           a store's URL

A room here imports only from the groups below its own, through their front doors. This front door
has what belongs to the store as a whole; each of the seven rooms has one of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door
from harn.storage.indexes import bring_indexes

if TYPE_CHECKING:
    from harn.storage import jsonl
    from harn.storage.codec import (
        MAX_PAYLOAD,
        MAX_VALUE,
        check_topic,
        decode,
        draft,
        encode,
        encode_headers,
    )
    from harn.storage.contract import Damaged, Draft, Durability, Event
    from harn.storage.engines import check_there
    from harn.storage.indexes import Index, Table
    from harn.storage.operations import (
        Ask,
        Operation,
        Recipe,
        Row,
        Rows,
        ask,
        ask_ahead,
        ask_many,
        ask_together,
    )
    from harn.storage.store import Store
    from harn.storage.url import read_only, read_url
else:
    front_door(
        __name__,
        {
            ".": "jsonl",
            "codec": "MAX_PAYLOAD MAX_VALUE check_topic decode draft encode encode_headers",
            "contract": "Damaged Draft Durability Event",
            "engines": "check_there",
            "indexes": "Index Table",
            "operations": "Ask Operation Recipe Row Rows ask ask_ahead ask_many ask_together",
            "store": "Store",
            "url": "read_only read_url",
        },
    )

__all__ = [
    "MAX_PAYLOAD",
    "MAX_VALUE",
    "Ask",
    "Damaged",
    "Draft",
    "Durability",
    "Event",
    "Index",
    "Operation",
    "Recipe",
    "Row",
    "Rows",
    "Store",
    "Table",
    "ask",
    "ask_ahead",
    "ask_many",
    "ask_together",
    "check_there",
    "check_topic",
    "decode",
    "draft",
    "encode",
    "encode_headers",
    "jsonl",
    "read_only",
    "read_url",
]


def _indexes() -> list[Index]:
    from harn.storage.queue import JobIndex
    from harn.storage.state import StateIndex
    from harn.storage.triggers import TriggerIndex

    return [JobIndex(), TriggerIndex(), StateIndex()]


bring_indexes(_indexes)
