"""A consumer that runs the jobs of a queue with the handlers of its own manifest.

A job contains only a trigger's id. The handler is the one that this manifest has for that id. Jobs
of other triggers, and of triggers whose handler is another queue or agent, are not claimed.
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
    """Return a consumer of *queue* with the handlers of *manifest*, and its runner.

    Triggers that the manifest's setup has registered are included. Raises `ManifestError`, before
    any job is claimed, if a handler cannot be imported. A job is acked when the pool tasks that it
    caused complete within *work_within* seconds.
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
