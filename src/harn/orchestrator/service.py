"""The service: runs a manifest's triggers, consumes its queues and accepts its requests.

Everything is prepared before anything changes: a mistake in the manifest, a handler that cannot be
imported or a missing secret leaves a running service unchanged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harn.clock import resolve
from harn.errors import HarnError
from harn.orchestrator.admin_verbs import ActedBy, Running, Verb
from harn.orchestrator.exposure import check_reach
from harn.orchestrator.intake import Intake
from harn.orchestrator.manifest import Manifest
from harn.orchestrator.manifest_changes import AT_START, changes
from harn.orchestrator.manifest_plan import Plan, plan_serving, plan_triggers
from harn.orchestrator.verb_options import Options
from harn.pools import PoolRegistry
from harn.storage import Store
from harn.storage.log import head
from harn.tasks import runner_for
from harn.topics import WORKER_QUEUES
from harn.triggers import A2aRights, JobRunner, Triggers
from harn.workers import Consumer, DrainReport, WorkerQueue, worker_queues

if TYPE_CHECKING:
    from harn.runtime import Runtime

logger: logging.Logger = logging.getLogger("harn.orchestrator")

LOOK_EVERY = 1.0
"""Seconds between two checks for new queues."""
QUEUE_CONCURRENCY = 8


class NotNow(HarnError):
    """The service is starting or stopping; a request may work later."""


class Service:
    """Serves the manifest at *path* in *runtime*: `start`, `reload`, `drain`.

    Without a path it serves the store alone: operators may look, and act on queues and letters.
    """

    def __init__(
        self, runtime: Runtime, path: str | Path | None, keys: Sequence[bytes] = ()
    ) -> None:
        self.runtime = runtime
        self.path: Path | None = None if path is None else Path(path)
        self._keys = keys
        self.triggers: Triggers = runtime.service(Triggers)
        self.intake: Intake = Intake(runtime)
        self.plan: Plan | None = None
        self.host: str | None = None
        """The address it listens on, if any: a reload checks that it still needs no more keys."""
        self._consumers: dict[str, tuple[Consumer, asyncio.Task[Any]]] = {}
        self._others: list[tuple[Consumer, asyncio.Task[Any]]] = []
        """Consumers of an earlier manifest with running jobs, and those that operators start."""
        self._asked: set[asyncio.Future[Any]] = set()
        """Operators' verbs that have not ended."""
        self._looking: asyncio.Task[None] | None = None
        self._setups: set[str] = set()
        self._is_named = False

    @property
    def admin_keys(self) -> Sequence[bytes]:
        """The keys of operators."""
        return self._keys if self.plan is None else self.plan.admin_keys

    @property
    def manifest(self) -> Manifest:
        """The current manifest."""
        assert self.plan is not None, "the service has not started"
        return self.plan.manifest

    async def start(self, *, consume: bool = True) -> None:
        """Start the manifest. After a cancel it is half started: close the runtime."""
        plan = self.prepare()
        await self._set_up(plan.manifest)
        self._enforce(plan)
        await self.triggers.recovery.recover()
        if consume:
            self._looking = asyncio.ensure_future(self._keep_looking())
            self.runtime.own(self._looking)

    async def start_by_hand(self, wanted: Sequence[str] | None = None) -> None:
        """Run the setup and register triggers, for a command that dispatches and ends.

        *wanted* are the triggers' ids, by default all of the manifest. No schedule or topic is
        followed, no events are taken over, the backlogs of pools stay in their journals, and no key
        for requests is read. Cancelling leaves some registered.
        """
        assert self.path is not None, "without a manifest there is nothing to start"
        plan = plan_triggers(self.runtime, self.path, wanted)
        self.triggers.by_hand = self.runtime.service(PoolRegistry).by_hand = True
        await self._set_up(plan.manifest)
        self.runtime.service(A2aRights).replace(plan.manifest.a2a_allow, plan.tokens)
        for binding in plan.bindings:
            self.triggers.register(binding)
        self.plan = plan

    def prepare(self) -> Plan:
        """Read the manifest, import its handlers, read its secrets; change nothing."""
        assert self.path is not None, "without a manifest there is nothing to prepare"
        plan = plan_serving(self.runtime, self.path)
        if self.host is not None:
            check_reach(self.host, plan.admin_keys)
        return plan

    async def _set_up(self, manifest: Manifest) -> None:
        """Set the pipeline's name, and call the manifest's setup once for each name of a setup."""
        if not self._is_named:  # a reload must not give the pools of one pipeline two names
            self._is_named = True
            root = self.runtime.root
            name = manifest.pipeline or root.ambient.pipeline_id or manifest.pipeline_id
            root.ambient = self.runtime.ambient = replace(root.ambient, pipeline_id=name)
        if manifest.setup is None or manifest.setup in self._setups:
            return
        setup = manifest.resolver().resolve(manifest.setup)
        await runner_for(self.runtime, "auto").bind(setup)()
        self._setups.add(manifest.setup)

    def _enforce(self, plan: Plan) -> None:
        # The rights first: from now on no call uses a right that was removed.
        self.runtime.service(A2aRights).replace(plan.manifest.a2a_allow, plan.tokens)
        self.intake.replace(plan.hooks, plan.manifest.card)
        wanted = {binding.id for binding in plan.bindings}
        # Triggers that the setup registered are not in a plan, so they stay.
        for binding in () if self.plan is None else self.plan.bindings:
            if binding.id not in wanted:
                self.triggers.unregister(binding.id)
        for binding in plan.bindings:
            self.triggers.register(binding)
        self.plan = plan

    async def reload(self) -> dict[str, Any]:
        """Read the manifest again and apply the changes; old versions finish.

        The report names the triggers with a new version, everything in the manifest that differs,
        including keys and tokens, and what takes effect only at the next start. A mistake is raised
        and changes nothing.
        """
        plan = self.prepare()
        await self._set_up(plan.manifest)
        different = [] if self.plan is None else changes(self.plan, plan)
        before = {shown.key for shown in self.triggers.listed()}
        self._enforce(plan)
        for consumer, running in self._consumers.values():
            consumer.retire()  # it has the old set of triggers; the next check starts a new one
            self._others.append((consumer, running))
        self._others = [each for each in self._others if not each[1].done()]
        self._consumers = {}
        after = {shown.key for shown in self.triggers.listed() if shown.state == "active"}
        return {
            "changed": sorted(after - before),
            "manifest": different,
            "at_next_start": [name for name in different if name in AT_START],
            "triggers": len(plan.bindings),
        }

    async def is_ready(self) -> bool:
        """Tell whether the service has started and the store answers."""
        if (self.path is not None and self.plan is None) or self.intake.draining:
            return False
        try:
            await self.runtime.service(Store).run(lambda: head(WORKER_QUEUES), write=False)
        except HarnError:
            return False
        return True

    # -- queues --------------------------------------------------------------------------------

    async def _keep_looking(self) -> None:
        """Consume every queue that may have jobs for this manifest, also new ones."""
        while True:
            try:
                await self._look()
            except HarnError as error:
                logger.warning("the queues could not be read: %s", error)
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            clock = self.runtime.clock
            timer = clock.call_at(
                clock.monotonic() + LOOK_EVERY, partial(resolve, woken), background=True
            )
            try:
                await woken
            finally:
                timer.cancel()

    async def _look(self) -> None:
        assert self.plan is not None
        local = frozenset(binding.id for binding in self.triggers.active() if binding.is_local)
        if not local:
            return
        names = self.plan.manifest.serve.queues
        if names is None:
            names = tuple(summary.queue for summary in await worker_queues())
        for name in names:
            running = self._consumers.get(name)
            if running is None or running[1].done():
                self._consume(name, local)

    def _consume(self, name: str, local: frozenset[str]) -> None:
        consumer = Consumer(
            WorkerQueue(self.runtime, name, None),
            JobRunner(self.runtime),
            concurrency=QUEUE_CONCURRENCY,
            stop_when_empty=False,
            triggers=local,
        )
        running = asyncio.ensure_future(consumer.run())
        self.runtime.own(running)
        self._consumers[name] = (consumer, running)

    # -- operators -----------------------------------------------------------------------------

    async def look(self, verb: Verb, options: Options) -> dict[str, Any]:
        """Run a verb that only looks. Cancelling leaves nothing behind."""
        return await verb.run(self, options, lambda line: None)

    def operate(self, verb: Verb, options: Options, by: ActedBy | None = None) -> Running:
        """Start an operator's verb. It continues if the operator stops waiting."""
        if self.path is None and verb.needs_manifest:
            raise HarnError(
                "this portal has a store and no manifest; ask the service that runs the manifest"
            )
        is_starting = self.path is not None and self.plan is None
        if is_starting or self.intake.draining:
            raise NotNow(f"the service is {'starting' if is_starting else 'stopping'}")
        running = Running(self, verb, options, by)
        self._asked.add(running.task)
        running.task.add_done_callback(self._asked.discard)
        return running

    async def run_consumer(self, consumer: Consumer) -> DrainReport:
        """Run a consumer beside those of the manifest; `drain` ends it too.

        Cancelling cancels its handlers and releases their jobs.
        """
        running = asyncio.ensure_future(consumer.run())
        self._others.append((consumer, running))
        try:
            return await running
        finally:
            self._others = [each for each in self._others if each[1] is not running]

    # -- the end -------------------------------------------------------------------------------

    async def drain(self, within: float) -> bool:
        """Accept nothing more and ask the handlers to stop; tell if all ended *within* seconds.

        A handler that waits in this library gets `TaskCancelled` there; others may finish. What has
        not finished is released: dispatches to the inbox, jobs to their queues.
        """
        self.intake.draining = True
        for binding in self.triggers.active():
            self.triggers.sources.end(binding.id)
        if self._looking is not None:
            self._looking.cancel()
        self.stop_consumers()
        self.triggers.dispatcher.request_stop()
        clock = self.runtime.clock
        enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = clock.call_at(clock.monotonic() + within, partial(resolve, enough))
        ends = [running for _, running in self._all_consumers()]
        finishing = asyncio.ensure_future(self._finish(ends))
        try:
            await asyncio.wait((finishing, enough), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
        finished = finishing.done()
        if not finished:
            finishing.cancel()
            self.give_up_consumers()
            if ends:
                await asyncio.wait(ends)
        return finished

    def stop_consumers(self) -> bool:
        """Claim no more, and ask the handlers of jobs to stop; false without a consumer."""
        for consumer, _ in self._all_consumers():
            consumer.stop()
        return bool(self._all_consumers())

    def give_up_consumers(self) -> None:
        """Cancel the handlers of jobs; the jobs are released."""
        for consumer, _ in self._all_consumers():
            consumer.give_up()

    def _all_consumers(self) -> list[tuple[Consumer, asyncio.Task[Any]]]:
        return [*self._consumers.values(), *self._others]

    async def _finish(self, consumers: Sequence[asyncio.Task[Any]]) -> None:
        if consumers:
            await asyncio.wait(consumers)
        while any(not each.is_parked for each in self.triggers.dispatcher.running.values()):
            await self.triggers.dispatcher.changed()
        if self._asked:
            await asyncio.wait(self._asked)
