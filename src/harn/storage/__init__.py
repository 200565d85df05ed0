"""The store: one event log with indexes beside it, on SQLite, PostgreSQL, files or in memory.

`runtime.service(Store)` is a runtime's open store. `store.run(recipe)` carries out an operation,
a generator of named statements (see `operations.py`), in a transaction of its own; the engines
differ in how they drive it and in nothing that can be seen.

    store.py         the open engine of a runtime; apart.py, the same engine opened again

    queue/           jobs: enqueue, claim, settle
    triggers/        events on their way, dedupe keys, schedules, gates, circuits
    limits/          rate-limit buckets
    leases/          names with one holder

    log/             append, read, trim, export, rebuild

    engines/         sqlite/, postgres/, file/ and memory/

    contract.py      records, and what an engine must do
    operations.py    the generators, and the loop that drives one
    indexes.py       how a fold of the log plugs in
    queries.py       the SQL of every concern, by name: the files in sql/
    codec.py         what may enter the log; strict_json.py, what is JSON and what is not
    jsonl.py         a file of checksummed lines
    url.py           a store's URL
"""

from __future__ import annotations

from harn.storage import jsonl
from harn.storage.apart import Apart
from harn.storage.codec import check_kind, check_topic, decode, draft, encode, encode_headers
from harn.storage.contract import Damaged, Draft, Driver, Durability, Event
from harn.storage.indexes import Index, Table
from harn.storage.leases.named_leases import (
    LeaseHeld,
    LeaseView,
    TakenLease,
    lease_place,
    list_leases,
    look_at_lease,
    release_lease,
    renew_lease,
    take_lease,
)
from harn.storage.log.events import PAGE, append, head, raise_head, read, topics as list_topics
from harn.storage.log.export import Importer, export
from harn.storage.log.rebuild import Difference, compare, rebuild
from harn.storage.log.trim import trim
from harn.storage.operations import Ask, Operation, Recipe, Row, Rows, ask, ask_ahead, ask_many
from harn.storage.queue.claim import (
    Claimed,
    Claiming,
    Work,
    WorkDone,
    claim_jobs,
    enqueue_jobs,
    has_work,
    settle_claims,
    work_on,
)
from harn.storage.queue.job_fold import JobIndex
from harn.storage.queue.job_index import AGE_BOUNDS
from harn.storage.queue.job_records import (
    DIMENSIONS,
    PRIORITIES,
    STATES,
    Board,
    Choice,
    Choose,
    ClaimedJob,
    Dimension,
    JobDraft,
    Pick,
    Settlement,
    SettlementResult,
    Share,
    share_key,
    shown_key,
)
from harn.storage.queue.job_views import (
    JobView,
    QueueCounts,
    ShareCounts,
    count_queue,
    keys_in_turn,
    list_shares,
    look_at_job,
    queue_names,
    wake_queue,
)
from harn.storage.queue.settle import purge_jobs
from harn.storage.store import Store
from harn.storage.triggers.gate_marks import (
    Change,
    CircuitRow,
    Decide,
    Mark,
    at_circuit,
    at_gate,
    circuits,
    has_no_failures,
)
from harn.storage.triggers.inbox import (
    DeadLetter,
    DedupeClaim,
    Delivery,
    NewEvent,
    Orphan,
    Pending,
    TakenIn,
    change_letter,
    cron_last,
    dead_letter,
    dead_letters,
    give_up,
    inbox,
    keep_alive,
    leave,
    note_retry,
    pending,
    settle_envelope,
    take_in,
    take_over,
)
from harn.storage.url import check_there, read_only, read_url

__all__ = [
    "AGE_BOUNDS",
    "DIMENSIONS",
    "PAGE",
    "PRIORITIES",
    "STATES",
    "Apart",
    "Ask",
    "Board",
    "Change",
    "Choice",
    "Choose",
    "CircuitRow",
    "Claimed",
    "ClaimedJob",
    "Claiming",
    "Damaged",
    "DeadLetter",
    "Decide",
    "DedupeClaim",
    "Delivery",
    "Difference",
    "Dimension",
    "Draft",
    "Driver",
    "Durability",
    "Event",
    "Importer",
    "Index",
    "JobDraft",
    "JobIndex",
    "JobView",
    "LeaseHeld",
    "LeaseView",
    "Mark",
    "NewEvent",
    "Operation",
    "Orphan",
    "Pending",
    "Pick",
    "QueueCounts",
    "Recipe",
    "Row",
    "Rows",
    "Settlement",
    "SettlementResult",
    "Share",
    "ShareCounts",
    "Store",
    "Table",
    "TakenIn",
    "TakenLease",
    "Work",
    "WorkDone",
    "append",
    "ask",
    "ask_ahead",
    "ask_many",
    "at_circuit",
    "at_gate",
    "change_letter",
    "check_kind",
    "check_there",
    "check_topic",
    "circuits",
    "claim_jobs",
    "compare",
    "count_queue",
    "cron_last",
    "dead_letter",
    "dead_letters",
    "decode",
    "draft",
    "encode",
    "encode_headers",
    "enqueue_jobs",
    "export",
    "give_up",
    "has_no_failures",
    "has_work",
    "head",
    "inbox",
    "jsonl",
    "keep_alive",
    "keys_in_turn",
    "lease_place",
    "leave",
    "list_leases",
    "list_shares",
    "list_topics",
    "look_at_job",
    "look_at_lease",
    "note_retry",
    "pending",
    "purge_jobs",
    "queue_names",
    "raise_head",
    "read",
    "read_only",
    "read_url",
    "rebuild",
    "release_lease",
    "renew_lease",
    "settle_claims",
    "settle_envelope",
    "share_key",
    "shown_key",
    "take_in",
    "take_lease",
    "take_over",
    "trim",
    "wake_queue",
    "work_on",
]
