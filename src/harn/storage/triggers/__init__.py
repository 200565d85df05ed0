"""What triggers store: events on their way, dedupe keys, schedules, gates and circuits.

inbox.py           events on their way, dedupe keys, schedules, dead letters
gate_marks.py      what gates and circuits decide
trigger_fold.py    the triggers' tables, from the log
"""

from __future__ import annotations

from harn.storage.triggers.gate_marks import (
    Change,
    CircuitRow,
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
from harn.storage.triggers.trigger_fold import (
    TriggerIndex,
)

__all__ = [
    "Change",
    "CircuitRow",
    "DeadLetter",
    "DedupeClaim",
    "Delivery",
    "Mark",
    "NewEvent",
    "Orphan",
    "Pending",
    "TakenIn",
    "TriggerIndex",
    "at_circuit",
    "at_gate",
    "change_letter",
    "circuits",
    "cron_last",
    "dead_letter",
    "dead_letters",
    "give_up",
    "has_no_failures",
    "inbox",
    "keep_alive",
    "leave",
    "note_retry",
    "pending",
    "settle_envelope",
    "take_in",
    "take_over",
]
