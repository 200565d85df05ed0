"""The service: runs a manifest's triggers, consumes its queues and accepts its requests.

Everything is prepared before anything changes: a mistake in the manifest, a handler that cannot be
imported or a missing secret leaves a running service unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harn.clock import resolve
from harn.error_text import error_text
from harn.errors import HarnError, ManifestError
from harn.orchestrator.admin_verbs import Verb
from harn.orchestrator.loaded_manifest import Plan, plan_triggers
from harn.orchestrator.manifest import Manifest
from harn.orchestrator.running_verb import ActedBy, Running
from harn.orchestrator.verb_options import Options
from harn.pools import Backlogs
from harn.storage import Store
from harn.storage.log import head
from harn.tasks import runner_for
from harn.topics import WORKER_QUEUES
from harn.triggers import Triggers

if TYPE_CHECKING:
    from harn.orchestrator.intake import Intake
    from harn.orchestrator.served_queues import ServedQueues
    from harn.runtime import Runtime


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
        self._intake: Intake | None = None
        self.plan: Plan | None = None
        self.host: str | None = None
        """The address it listens on, if any: a reload checks that it still needs no more keys."""
        self._queues: ServedQueues | None = None
        self._asked: set[asyncio.Future[Any]] = set()
        """Operators' verbs that have not ended."""
        self._setups: set[str] = set()
        self._reloading = asyncio.Lock()
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

    @property
    def intake(self) -> Intake:
        """Its requests from outside; made at the first use, since a command takes none."""
        if self._intake is None:
            from harn.orchestrator.intake import Intake

            self._intake = Intake(self.runtime)
        return self._intake

    @property
    def queues(self) -> ServedQueues:
        """The consumers of its queues; made at the first use, since a command needs none."""
        if self._queues is None:
            from harn.orchestrator.served_queues import ServedQueues

            self._queues = ServedQueues(self.runtime, lambda: self.manifest.serve.queues)
        return self._queues

    async def start(self, *, consume: bool = True) -> None:
        """Start the manifest. After a cancel it is half started: close the runtime."""
        plan = self.prepare()
        await self._set_up(plan.manifest)
        self._enforce(plan)
        await self.triggers.recovery.recover()
        if consume:
            self.queues.begin()

    async def start_by_hand(self, wanted: Sequence[str] | None = None) -> None:
        """Run the setup and register triggers, for a command that dispatches and ends.

        *wanted* are the triggers' ids, by default all of the manifest. No schedule or topic is
        followed, no events are taken over, the backlogs of pools stay in their journals, and no key
        for requests is read. Cancelling leaves some registered.
        """
        assert self.path is not None, "without a manifest there is nothing to start"
        plan = plan_triggers(self.runtime, self.path, wanted)
        self.triggers.by_hand = self.runtime.service(Backlogs).are_left = True
        await self._set_up(plan.manifest)
        if plan.manifest.a2a_allow or plan.tokens:
            self._grant_calls(plan)
        for binding in plan.bindings:
            self.triggers.register(binding)
        self.plan = plan

    def prepare(self) -> Plan:
        """Read the manifest, import its handlers, read its secrets; change nothing."""
        assert self.path is not None, "without a manifest there is nothing to prepare"
        from harn.orchestrator.listen_address import check_reach
        from harn.orchestrator.serving_plan import plan_serving

        plan = plan_serving(self.runtime, self.path)
        if self.host is not None:
            check_reach(self.host, plan.admin_keys)
        return plan

    async def _set_up(self, manifest: Manifest) -> None:
        """Set the pipeline's name, and call the manifest's setup once for each name of a setup.

        A setup that fails raises `ManifestError`; what it has made until then stays.
        """
        if not self._is_named:  # a reload must not give the pools of one pipeline two names
            self._is_named = True
            root = self.runtime.root
            name = manifest.pipeline or root.ambient.pipeline_id or manifest.pipeline_id
            root.ambient = self.runtime.ambient = msgspec.structs.replace(
                root.ambient, pipeline_id=name
            )
        if manifest.setup is None or manifest.setup in self._setups:
            return
        await self._call_setup(manifest.setup, manifest.resolver().resolve(manifest.setup))
        self._setups.add(manifest.setup)

    async def _call_setup(self, name: str, setup: Callable[[], Any]) -> None:
        try:
            await runner_for(self.runtime, "auto").bind(setup)()
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            is_cancelled = task is not None and task.cancelling() > 0
            if isinstance(error, asyncio.CancelledError) and is_cancelled:
                raise
            # A cancel of something that the setup awaits is a failure, too. A service that took it
            # for its own would wait for the end, and never start.
            raise ManifestError(f"the setup {name!r} failed: {error_text(error)}") from error

    def _grant_calls(self, plan: Plan) -> None:
        """Let handlers call the agents of *plan*, and no other ones."""
        from harn.triggers import A2aRights

        self.runtime.service(A2aRights).replace(plan.manifest.a2a_allow, plan.tokens)

    def _enforce(self, plan: Plan) -> None:
        # The rights first: from now on no call uses a right that was removed.
        self._grant_calls(plan)
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
        and changes nothing. A cancel changes nothing, but a new setup may have run.
        """
        # One at a time: a signal and an operator may ask together, and a setup runs once.
        async with self._reloading:
            return await self._reload()

    async def _reload(self) -> dict[str, Any]:
        from harn.orchestrator.manifest_changes import AT_START, changes

        plan = self.prepare()
        await self._set_up(plan.manifest)
        different = [] if self.plan is None else changes(self.plan, plan)
        before = {shown.key for shown in self.triggers.listed()}
        self._enforce(plan)
        self.queues.renew()
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

    # -- the end -------------------------------------------------------------------------------

    async def drain(self, within: float) -> bool:
        """Accept nothing more and ask the handlers to stop; tell if all ended *within* seconds.

        A handler that waits in this library gets `TaskCancelled` there; others may finish. What has
        not finished is released: dispatches to the inbox, jobs to their queues. Cancelling stops
        waiting; the end of the runtime releases the rest.
        """
        self.intake.draining = True
        for binding in self.triggers.active():
            self.triggers.sources.end(binding.id)
        self.queues.stop()
        self.triggers.dispatcher.request_stop()
        clock = self.runtime.clock
        enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = clock.call_at(clock.monotonic() + within, partial(resolve, enough))
        ends = self.queues.running()
        finishing = asyncio.ensure_future(self._finish(ends))
        try:
            await asyncio.wait((finishing, enough), return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            finished = finishing.done()
            finishing.cancel()
        if not finished:
            self.queues.give_up()
            if ends:
                await asyncio.wait(ends)
        return finished

    async def _finish(self, consumers: Sequence[asyncio.Task[Any]]) -> None:
        if consumers:
            await asyncio.wait(consumers)
        while any(not each.is_parked for each in self.triggers.dispatcher.running.values()):
            await self.triggers.dispatcher.changed()
        if self._asked:
            await asyncio.wait(self._asked)
