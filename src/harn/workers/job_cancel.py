"""Cancelling a job, and its handler in any process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.storage import Store
from harn.storage.queue import job_control
from harn.workers.claim_renewal import ClaimRenewal
from harn.workers.job_reads import JobReads
from harn.workers.records import check_reason

if TYPE_CHECKING:
    from harn.runtime import Runtime


async def cancel(runtime: Runtime, queue: str, key: int | str, reason: str | None) -> bool:
    """Settle a job as cancelled; False if there is none, or it is settled already."""
    check_reason(reason)
    who = runtime.ambient.submitted_by
    runtime.check_here()
    id = await runtime.service(JobReads).id_of(queue, key)
    if id is None:
        return False
    is_cancelled = await runtime.service(Store).run(
        lambda: job_control.cancel_job(queue, id, who, reason, runtime.ids.new)
    )
    if is_cancelled:  # another process cancels its handler when it renews its lease
        runtime.service(ClaimRenewal).lose_job(queue, id, "the job was cancelled")
    return is_cancelled
