"""Communication and mutual exclusion between the tasks and threads of this process.

    channel.py    channels; select.py takes a value from one of several
    mailbox.py    named inboxes
    shared_values.py cells and maps with versions; sharing_scopes.py, which tasks share them
    atomic.py     counters
    mutex.py      critical sections by place or by resource; structural_key.py compares resources
    permits.py    named mutex, rwlock, semaphore, gate; named_permits.py finds their queues,
                  permit_queue.py grants the permits, metrics.py counts them
    waitpoint.py  named events that many callers wait for and one completes
    deadlock.py   finds out when every task waits and none can wake another
    wait_queue.py the one wait queue under all of them

First come, first served, safe to cancel at any moment, and usable from worker threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.sync.atomic import Atomic, atomic
    from harn.sync.channel import Channel, channel
    from harn.sync.mailbox import (
        Mailbox,
        MailboxMetrics,
        mailbox_lookup,
        mailbox_open,
        mailbox_send,
    )
    from harn.sync.metrics import SyncMetrics, sync_metrics
    from harn.sync.mutex import Mutex, mutex
    from harn.sync.permits import (
        Permit,
        sync_gate_acquire,
        sync_mutex_acquire,
        sync_release,
        sync_rwlock_acquire,
        sync_semaphore_acquire,
    )
    from harn.sync.select import Selected, channel_select
    from harn.sync.shared_values import (
        SharedCell,
        SharedMap,
        SharedMetrics,
        SharedSnapshot,
        shared_cell,
        shared_map,
    )
    from harn.sync.wait_queue import (
        CLOSED,
        GONE,
        GRANTED,
        TIMED_OUT,
        WAITING,
        Waiter,
        WaitQueue,
        guard,
        park,
    )
    from harn.sync.waitpoint import Waitpoint, waitpoint_cancel, waitpoint_complete, waitpoint_wait
else:
    front_door(
        __name__,
        {
            "atomic": "Atomic atomic",
            "channel": "Channel channel",
            "mailbox": "Mailbox MailboxMetrics mailbox_lookup mailbox_open mailbox_send",
            "metrics": "SyncMetrics sync_metrics",
            "mutex": "Mutex mutex",
            "permits": """
                Permit sync_gate_acquire sync_mutex_acquire sync_release sync_rwlock_acquire
                sync_semaphore_acquire
            """,
            "select": "Selected channel_select",
            "shared_values": """
                SharedCell SharedMap SharedMetrics SharedSnapshot shared_cell shared_map
            """,
            "wait_queue": "CLOSED GONE GRANTED TIMED_OUT WAITING Waiter WaitQueue guard park",
            "waitpoint": "Waitpoint waitpoint_cancel waitpoint_complete waitpoint_wait",
        },
    )

__all__ = [
    "CLOSED",
    "GONE",
    "GRANTED",
    "TIMED_OUT",
    "WAITING",
    "Atomic",
    "Channel",
    "Mailbox",
    "MailboxMetrics",
    "Mutex",
    "Permit",
    "Selected",
    "SharedCell",
    "SharedMap",
    "SharedMetrics",
    "SharedSnapshot",
    "SyncMetrics",
    "WaitQueue",
    "Waiter",
    "Waitpoint",
    "atomic",
    "channel",
    "channel_select",
    "guard",
    "mailbox_lookup",
    "mailbox_open",
    "mailbox_send",
    "mutex",
    "park",
    "shared_cell",
    "shared_map",
    "sync_gate_acquire",
    "sync_metrics",
    "sync_mutex_acquire",
    "sync_release",
    "sync_rwlock_acquire",
    "sync_semaphore_acquire",
    "waitpoint_cancel",
    "waitpoint_complete",
    "waitpoint_wait",
]
