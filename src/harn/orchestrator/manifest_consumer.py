"""From a queue to the handlers that the consumer's own manifest names.

A job only carries a trigger's id. What runs is what this manifest exports under that id; jobs of
triggers that it does not know, or hands on to another queue, are not even claimed.
"""

from __future__ import annotations

from collections.abc import Callable

from harn.errors import TriggerError
from harn.orchestrator.manifest import Manifest
from harn.runtime import Runtime
from harn.triggers import Binding, JobRunner, Triggers
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
    work_within: float = 30.0,
    progress: Callable[[Consumer], None] | None = None,
) -> tuple[Consumer, JobRunner]:
    """Make a consumer of *queue* that runs what *manifest* says, and its handler.

    The manifest's setup has run: what that registered counts too. A handler that cannot be
    imported is a `ManifestError` before anything is claimed. A job is acked when the pool tasks
    that it caused have completed, within *work_within* seconds.
    """
    exports = manifest.resolver()
    active = runtime.service(Triggers).active()
    bindings: dict[str, Binding] = {each.id: each for each in active if each.is_local}
    for trigger in manifest.triggers:
        bindings.pop(trigger.id, None)
        if trigger.is_local:
            bindings[trigger.id] = manifest.bound(trigger, exports)

    def find(id: str) -> Binding:
        if id not in bindings:
            raise TriggerError(f"{manifest.path.name} has no trigger {id!r} that runs here")
        return bindings[id]

    runner = JobRunner(runtime, find, work_within=work_within)
    consumer = Consumer(
        WorkerQueue(runtime, queue, None),
        runner,
        consumer_id=consumer_id,
        claim_ttl=claim_ttl,
        concurrency=concurrency,
        stop_when_empty=stop_when_empty,
        triggers=frozenset(bindings),
        progress=progress,
    )
    return consumer, runner
