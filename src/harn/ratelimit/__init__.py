"""Rate limits that hold across processes: reserve, run, settle.

window.py     sliding-window arithmetic: pure; rules.py, the rules that count for a key
admission.py  one transaction: correct, admit, queue
line.py       the callers of this process that wait, and when to ask again
limiter.py    durable_rate_limit_acquire, and where the rows live
buckets.py    what is asked and what is answered
owner.py      whether the process that holds a ticket still lives
providers.py  limits of model providers: catalogue, environment, llm_rate_limit
slot.py       llm_slot and with_rate_limit; concurrency.py, its seats
hints.py      what a provider's answer says about coming back: pure
listing.py    what an operator sees; counting.py, what Prometheus sees
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
