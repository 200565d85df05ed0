"""From a queue to the handlers that the consumer's own manifest names.

A job only carries a trigger's id. What runs is what this manifest exports under that id; jobs of
triggers that it does not know, or hands on to another queue, are not even claimed.
"""

from __future__ import annotations

from collections.abc import Callable

from harn.errors import TriggerError
from harn.orchestrator.manifest import Manifest
from harn.runtime import Runtime
from harn.triggers import Binding, JobRunner
from harn.workers import Consumer, WorkerQueue


def manifest_consumer(
    runtime: Runtime,
    queue: str,
    manifest: Manifest,
    *,
    consumer_id: str | None = None,
    claim_ttl: float | str = "5m",
    concurrency: int = 1,
    stop_when_empty: bool = True,
    progress: Callable[[Consumer], None] | None = None,
) -> Consumer:
    """Make a consumer of *queue* that runs what *manifest* says.

    A handler that cannot be imported is a `ManifestError` before anything is claimed.
    """
    exports = manifest.resolver()
    bindings: dict[str, Binding] = {
        trigger.id: manifest.bound(trigger, exports)
        for trigger in manifest.triggers
        if trigger.is_local
    }

    def find(id: str) -> Binding:
        if id not in bindings:
            raise TriggerError(f"{manifest.path.name} has no trigger {id!r} that runs here")
        return bindings[id]

    return Consumer(
        WorkerQueue(runtime, queue, None),
        JobRunner(runtime, find),
        consumer_id=consumer_id,
        claim_ttl=claim_ttl,
        concurrency=concurrency,
        stop_when_empty=stop_when_empty,
        triggers=frozenset(bindings),
        progress=progress,
    )
