"""Leases: names that one holder has at a time, until the lease expires.

lease_store.py      where they are kept
named_leases.py     take, renew, release and list them
lease_renewal.py    renew one on time, and say when it is lost
heartbeat.py        the thread that leases and claims are renewed on
consumer_leases.py  which consumers are alive
dead_consumers.py   the search for those that are not, and the end of their claims
retention_timer.py  a process trims the settled jobs of the queues and pools that it serves
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.storage.leases.consumer_leases import (
        ConsumerLease,
        ConsumerRow,
        ExpiredConsumer,
        Looked,
        drop_consumer,
        end_consumer,
        keep_consumer,
        list_consumers,
        take_expired_consumers,
    )
    from harn.storage.leases.dead_consumers import DeadConsumers
    from harn.storage.leases.heartbeat import Beat, Heartbeat
    from harn.storage.leases.lease_renewal import LeaseRenewal, lost_at
    from harn.storage.leases.lease_store import LeaseStore
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
    from harn.storage.leases.retention_timer import JobRetention
else:
    front_door(
        __name__,
        {
            "consumer_leases": """
                ConsumerLease ConsumerRow ExpiredConsumer Looked drop_consumer end_consumer
                keep_consumer list_consumers take_expired_consumers
            """,
            "dead_consumers": "DeadConsumers",
            "heartbeat": "Beat Heartbeat",
            "retention_timer": "JobRetention",
            "lease_renewal": "LeaseRenewal lost_at",
            "lease_store": "LeaseStore",
            "named_leases": """
                LeaseHeld LeaseView TakenLease lease_place list_leases look_at_lease release_lease
                renew_lease take_lease
            """,
        },
    )

__all__ = [
    "Beat",
    "ConsumerLease",
    "ConsumerRow",
    "DeadConsumers",
    "ExpiredConsumer",
    "Heartbeat",
    "JobRetention",
    "LeaseHeld",
    "LeaseRenewal",
    "LeaseStore",
    "LeaseView",
    "Looked",
    "TakenLease",
    "drop_consumer",
    "end_consumer",
    "keep_consumer",
    "lease_place",
    "list_consumers",
    "list_leases",
    "look_at_lease",
    "lost_at",
    "release_lease",
    "renew_lease",
    "take_expired_consumers",
    "take_lease",
]
