"""Leases: names that one holder has at a time, until the lease expires.

named_leases.py    take, renew, release and list them
"""

from __future__ import annotations

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

__all__ = [
    "LeaseHeld",
    "LeaseView",
    "TakenLease",
    "lease_place",
    "list_leases",
    "look_at_lease",
    "release_lease",
    "renew_lease",
    "take_lease",
]
