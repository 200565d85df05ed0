"""The tasks in which a consumer's handlers run: the id of each, and the work that it belongs to."""

from __future__ import annotations

import msgspec

from harn.context import Ambient, Task, Work, WorkTask
from harn.workers.records import Job

KEPT_AMBIENTS = 10_000


class JobTasks:
    """Makes the tasks of one consumer's handlers, below the consumer's own task."""

    def __init__(self, parent: Task) -> None:
        self._parent = parent
        self._ambients: dict[tuple[str | None, ...], Ambient] = {}

    def new(self, job: Job) -> WorkTask:
        """Return a new task for the handler of *job*."""
        parent = self._parent
        return WorkTask(
            parent.runtime,
            f"{parent.id}:job:{job.id}",
            "job",
            parent,
            ambient=self._ambient_of(job),
            cancel_from=parent,
            work=Work("job", job.queue, str(job.id)),
        )

    def _ambient_of(self, job: Job) -> Ambient:
        origin = (job.tenant_id, job.trigger_id, job.binding_key)
        known = self._ambients.get(origin)
        if known is None:
            ours = self._parent.ambient
            known = msgspec.structs.replace(
                ours,
                tenant_id=job.tenant_id or ours.tenant_id,
                trigger_id=job.trigger_id or ours.trigger_id,
                binding_key=job.binding_key or ours.binding_key,
            )
            if len(self._ambients) < KEPT_AMBIENTS:
                self._ambients[origin] = known
        return known
