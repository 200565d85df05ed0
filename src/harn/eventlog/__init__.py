"""The event log as users see it: emit, read, subscribe; and `record`, for audits.

A topic is a sequence of records with offsets 1, 2, 3 ... that never restart. `emit` returns when
its record is durable. `record` never waits and never fails the work that it reports: the record is
written with the next commit, and a buffer that is full drops and counts.

    event_log.py       EventLog: every verb, the checks of its options
    batched_writer.py  writes to a store that lasts: what meets shares the next commit
    memory_writer.py   writes to a store in memory: audits stay in buffers until they are read
    page_reader.py     reads pages, and steps over records that cannot be read
    subscription.py    follows a topic
    audit_records.py   what `record` takes, and how it becomes a draft
    event_log_verbs.py the public verbs: they use the current runtime
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.eventlog.audit_records import Receipt
    from harn.eventlog.event_log import EventLog
    from harn.eventlog.event_log_verbs import (
        event_log_emit,
        event_log_read,
        event_log_subscribe,
    )
    from harn.eventlog.subscription import Subscription
else:
    front_door(
        __name__,
        {
            "audit_records": "Receipt",
            "event_log": "EventLog",
            "subscription": "Subscription",
            "event_log_verbs": "event_log_emit event_log_read event_log_subscribe",
        },
    )

__all__ = [
    "EventLog",
    "Receipt",
    "Subscription",
    "event_log_emit",
    "event_log_read",
    "event_log_subscribe",
]
