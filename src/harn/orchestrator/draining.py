"""From a claimed job to the handler that the consumer's own manifest names for its trigger.

A job only carries a trigger's id. What runs is what this manifest exports under that id; jobs of
triggers that it does not know, or hands on to another queue, are not even claimed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harn.errors import ManifestError
from harn.orchestrator.manifest import Manifest
from harn.runtime import Runtime
from harn.triggers import Binding, Call, TriggerEvent, Triggers, event_from
from harn.workers import Bury, Consumer, Job, WorkerQueue


class DispatchFailed(Exception):
    """A dispatch that ended without success and may be tried again with the next claim."""


@dataclass(frozen=True, slots=True)
class _Route:
    binding: Binding
    retries: bool
    """Whether the manifest itself asks for retries or gates: then the dispatcher is in charge."""


class JobHandlers:
    """The handlers that a manifest has for the jobs of a queue."""

    def __init__(self, runtime: Runtime, manifest: Manifest) -> None:
        self._runtime = runtime
        self._triggers = runtime.service(Triggers)
        self._routes: dict[str, _Route] = {}
        exports = manifest.resolver()
        for trigger in manifest.triggers:
            if isinstance(trigger.handler, str) and trigger.handler.startswith("worker://"):
                continue
            binding = manifest.bound(trigger, exports)
            managed = any(key in trigger.options for key in ("retry", *GATES))
            self._routes[trigger.id] = _Route(binding, managed)

    @property
    def trigger_ids(self) -> frozenset[str]:
        """The triggers whose jobs can be handled here."""
        return frozenset(self._routes)

    async def __call__(self, job: Job) -> Any:
        """Dispatch *job* to the handler of its trigger."""
        route = self._routes.get(job.trigger_id or "")
        if route is None:
            raise ManifestError(f"no trigger {job.trigger_id!r} here")
        event = self._event(job)
        if route.retries:
            return await self._dispatch(route.binding, event)
        return await self._deliver(route.binding, event, job)

    def _event(self, job: Job) -> TriggerEvent:
        if isinstance(job.payload, dict):
            try:
                return event_from(job.payload)
            except ValueError:
                pass
        route = self._routes[job.trigger_id or ""]
        return self._triggers.new_event(
            provider=route.binding.provider,
            kind=route.binding.first_event(),
            payload={"payload": job.payload},
            tenant_id=job.tenant_id,
        )

    async def _deliver(self, binding: Binding, event: TriggerEvent, job: Job) -> Any:
        call = Call(
            runtime=self._runtime,
            event=event,
            binding_id=binding.id,
            binding_key=job.binding_key or binding.key,
            binding_version=binding.version,
            priority=job.priority,
            attempt=job.attempts,
            replay_of=None,
            delivery=f"{job.queue}:{job.id}",
        )
        result = await binding.target.deliver(call)
        return {
            "trigger_id": binding.id,
            "binding_key": call.binding_key,
            "event_id": event.id,
            "attempt_count": 1,
            "status": "succeeded",
            "handler_kind": binding.target.kind,
            "target_uri": binding.target.uri,
            "result": result,
        }

    async def _dispatch(self, binding: Binding, event: TriggerEvent) -> Any:
        accepted = await self._triggers.accept(event, [binding])
        if not accepted.dispatches:
            return {"status": "skipped", "result": {"skipped": True, "flow_control": "duplicate"}}
        handle = await accepted.dispatches[0].wait()
        if handle.status == "dispatched":
            return {**handle.as_dict(), "status": "succeeded"}
        if handle.status == "dlq":
            raise Bury(handle.error or "the dispatch ended in the dead letters")
        raise DispatchFailed(handle.error or f"the dispatch ended {handle.status}")


GATES = ("batch", "debounce", "rate_limit", "throttle", "singleton", "concurrency")


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
    handlers = JobHandlers(runtime, manifest)
    return Consumer(
        WorkerQueue(runtime, queue, None),
        handlers,
        consumer_id=consumer_id,
        claim_ttl=claim_ttl,
        concurrency=concurrency,
        stop_when_empty=stop_when_empty,
        triggers=handlers.trigger_ids,
        progress=progress,
    )
