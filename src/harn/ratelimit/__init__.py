"""Rate limits that hold across processes: reserve, run, settle.

window       sliding-window arithmetic: pure
admission    one transaction: correct, admit, queue
line         who of this process waits, and when to ask again
limiter      durable_rate_limit_acquire, and where the rows live
buckets      what is asked and what is answered
owner        whether the process that holds a ticket still lives
providers    limits of model providers: catalogue, environment, llm_rate_limit
slot         llm_slot and with_rate_limit; concurrency.py has its seats
hints        what a provider's answer says about coming back: pure
counting     what Prometheus sees
"""

from __future__ import annotations

from harn.ratelimit.buckets import Bucket, BucketGrant, RateLimitGrant
from harn.ratelimit.limiter import Limiter, durable_rate_limit_acquire
from harn.ratelimit.listing import BucketStatus, list_status
from harn.ratelimit.providers import ProviderLimits, llm_rate_limit
from harn.ratelimit.slot import LlmSlot, llm_slot, with_rate_limit

__all__ = [
    "Bucket",
    "BucketGrant",
    "BucketStatus",
    "Limiter",
    "LlmSlot",
    "ProviderLimits",
    "RateLimitGrant",
    "durable_rate_limit_acquire",
    "list_status",
    "llm_rate_limit",
    "llm_slot",
    "with_rate_limit",
]
