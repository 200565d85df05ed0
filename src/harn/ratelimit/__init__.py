"""Rate limits that hold across processes: reserve, run, settle.

buckets.py           Bucket and RateLimitGrant: a request, and the answer to it
limiter.py           durable_rate_limit_acquire, and which store holds the rows
limiter_files.py     the files that do if none is named
reservation.py       the rows that a grant has charged: settle them, or count them from now on
store_limiter.py     collects what callers want of one store, and carries it out in one operation
limiter_batch.py     what callers ask for, and how a batch of it becomes one operation's work
waiting_callers.py   the callers of this process that wait; wake_times.py, when to ask again
transaction.py       one transaction: correct, grant, queue or refuse; records.py, its records
ticket_lines.py      the lines of tickets in which requests of all processes wait
window.py            the arithmetic of a sliding window; stored_window.py, with rows in the store
rules.py             several limits for one key
bucket_use.py        how full each bucket was; removes unused ones
process_identity.py  whether the process that owns a ticket still runs
model_files.py       the files that hold limits, prices and budgets
provider_limits.py   limits of model providers: catalogue, environment, llm_rate_limit
llm_slot.py          llm_slot; call_slots.py bounds the calls under way
rate_limited_call.py with_rate_limit
model_prices.py      what models cost: llm_price
budgets.py           what a tenant's calls may use: llm_budget
usage_records.py     the record that each call leaves in the topic `llm.usage`
retry_after.py       how long a provider's response asks callers to wait
status.py            what `harn ratelimit ls` lists; metrics.py, what Prometheus reads
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.ratelimit.buckets import Bucket, BucketGrant, RateLimitGrant
    from harn.ratelimit.budgets import Budget, llm_budget
    from harn.ratelimit.limiter import Limiter, durable_rate_limit_acquire
    from harn.ratelimit.limiter_files import stores_of_limits
    from harn.ratelimit.llm_slot import LlmSlot, llm_slot
    from harn.ratelimit.model_files import catalogues
    from harn.ratelimit.model_prices import Price, Prices, llm_price
    from harn.ratelimit.provider_limits import ProviderLimits, llm_rate_limit
    from harn.ratelimit.rate_limited_call import with_rate_limit
    from harn.ratelimit.retry_after import wait_in_headers
    from harn.ratelimit.status import BucketStatus, RuleStatus, list_status
else:
    front_door(
        __name__,
        {
            "buckets": "Bucket BucketGrant RateLimitGrant",
            "budgets": "Budget llm_budget",
            "model_files": "catalogues",
            "limiter": "Limiter durable_rate_limit_acquire",
            "limiter_files": "stores_of_limits",
            "llm_slot": "LlmSlot llm_slot",
            "model_prices": "Price Prices llm_price",
            "provider_limits": "ProviderLimits llm_rate_limit",
            "rate_limited_call": "with_rate_limit",
            "retry_after": "wait_in_headers",
            "status": "BucketStatus RuleStatus list_status",
        },
    )

__all__ = [
    "Bucket",
    "BucketGrant",
    "BucketStatus",
    "Budget",
    "Limiter",
    "LlmSlot",
    "Price",
    "Prices",
    "ProviderLimits",
    "RateLimitGrant",
    "RuleStatus",
    "catalogues",
    "durable_rate_limit_acquire",
    "list_status",
    "llm_budget",
    "llm_price",
    "llm_rate_limit",
    "llm_slot",
    "stores_of_limits",
    "wait_in_headers",
    "with_rate_limit",
]
