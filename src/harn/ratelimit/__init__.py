"""Rate limits that hold across processes: reserve, run, settle.

window      sliding-window arithmetic: pure
admission   one transaction: correct, admit, queue
line        who of this process waits, and when to ask again
limiter     durable_rate_limit_acquire, and where the rows live
owner       whether the process that holds a ticket still lives
counting    what Prometheus sees
"""

from __future__ import annotations

from harn.ratelimit.buckets import Bucket, BucketGrant, RateLimitGrant
from harn.ratelimit.limiter import Limiter, durable_rate_limit_acquire

__all__ = ["Bucket", "BucketGrant", "Limiter", "RateLimitGrant", "durable_rate_limit_acquire"]
