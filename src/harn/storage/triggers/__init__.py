"""What triggers store: events on their way, dedupe keys, schedules, gates and circuits.

new_events.py      take an event in, unless its dedupe key or its instant is known
inbox.py           events on their way: settle, retry, take over
owners.py          the processes that dispatch them, and whether they live
schedules.py       the last instant of each schedule
stored_letters.py  dead letters
gate_marks.py      what gates and circuits decide
trigger_fold.py    the triggers' tables, from the log
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.storage.triggers.gate_marks import (
        CircuitRow,
        GateChange,
        Mark,
        at_circuit,
        at_gate,
        circuits,
        has_no_failures,
    )
    from harn.storage.triggers.inbox import (
        Orphan,
        Pending,
        inbox,
        note_retry,
        pending,
        settle_envelope,
        take_over,
    )
    from harn.storage.triggers.new_events import DedupeClaim, Delivery, NewEvent, TakenIn, take_in
    from harn.storage.triggers.owners import keep_alive, leave
    from harn.storage.triggers.schedules import cron_last, give_up
    from harn.storage.triggers.stored_letters import (
        DeadLetter,
        change_letter,
        dead_letter,
        dead_letters,
        letter_draft,
    )
    from harn.storage.triggers.trigger_fold import TriggerIndex
else:
    front_door(
        __name__,
        {
            "gate_marks": "CircuitRow GateChange Mark at_circuit at_gate circuits has_no_failures",
            "inbox": "Orphan Pending inbox note_retry pending settle_envelope take_over",
            "new_events": "DedupeClaim Delivery NewEvent TakenIn take_in",
            "owners": "keep_alive leave",
            "schedules": "cron_last give_up",
            "stored_letters": "DeadLetter change_letter dead_letter dead_letters letter_draft",
            "trigger_fold": "TriggerIndex",
        },
    )

__all__ = [
    "CircuitRow",
    "DeadLetter",
    "DedupeClaim",
    "Delivery",
    "GateChange",
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
    "letter_draft",
    "note_retry",
    "pending",
    "settle_envelope",
    "take_in",
    "take_over",
]
