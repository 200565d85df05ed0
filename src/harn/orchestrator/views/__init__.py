"""Read-only views of a store: nothing here changes it, and cancelling leaves nothing behind.

queue_tree.py       the tree of a queue whose keys are paths
queue_views.py      every worker queue, as `queue ls` shows it
queue_metrics.py    the same numbers as samples for Prometheus
job_explanation.py  why one job is not running
predicted_start.py  when a waiting job will probably start, decided
recent_starts.py    the pace at which jobs were started lately
waiting_jobs.py     why the jobs of a page wait, and their predicted starts
job_attempts.py     the attempts at one job, with consumers and durations
resources.py        the documents of the read API
without_secrets.py  documents without secrets
inbox_view.py       the triggers' events under way
circuits_view.py    destinations that have failed lately
manifest_view.py    a manifest's triggers, circuits and dead letters
overview.py         everything in one document, for `harn top`
shared_pools_view.py the pools that processes share, and which process holds their slots
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.orchestrator.views.job_explanation import explain
    from harn.orchestrator.views.manifest_view import inspection
    from harn.orchestrator.views.overview import overview, shares_of
    from harn.orchestrator.views.queue_metrics import queue_samples
    from harn.orchestrator.views.queue_views import queues_view
    from harn.orchestrator.views.without_secrets import masked
else:
    front_door(
        __name__,
        {
            "job_explanation": "explain",
            "manifest_view": "inspection",
            "overview": "overview shares_of",
            "queue_metrics": "queue_samples",
            "queue_views": "queues_view",
            "without_secrets": "masked",
        },
    )

__all__ = [
    "explain",
    "inspection",
    "masked",
    "overview",
    "queue_samples",
    "queues_view",
    "shares_of",
]
