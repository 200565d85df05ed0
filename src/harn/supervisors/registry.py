"""`supervisor_start`, and all supervisors of a runtime."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.context import Task, add_cleanup
from harn.current import current_frame, current_runtime
from harn.duration import Duration
from harn.errors import HarnError
from harn.runtime import Runtime
from harn.supervisors.records import CHILD_STATUSES, SupervisorEvent, SupervisorState
from harn.supervisors.spec import Child, Mode, Restart, Strategy, read_spec
from harn.supervisors.supervisor import Supervisor
from harn.tasks import is_async_callable, runner_for
from harn.telemetry.metrics import Metrics, Sample

if TYPE_CHECKING:
    from harn.supervisors.lease import Leases
    from harn.supervisors.supervised_child import SupervisedChild

MOST_THREADS = 10_000
ENDED_KEPT = 100
"""The most ended supervisors that `runtime_context().debug.supervisors` still shows."""

COUNTED = {
    "child_started": "started",
    "child_restart_started": "started",
    "child_failed": "failed",
    "child_restarted": "restarted",
    "child_suppressed": "suppressed",
    "child_escalated": "escalated",
    "child_abandoned": "abandoned",
}


async def supervisor_start(
    *,
    name: str | None = None,
    strategy: Strategy = "one_for_one",
    children: Iterable[Child | Mapping[str, Any]],
    restart: Restart | Mode | Mapping[str, Any] | None = None,
    shutdown_ms: Duration = 5_000,
) -> Supervisor:
    """Start *children* from left to right, and keep them running.

    *strategy* says which children are restarted when one ends: only that one (`one_for_one`), also
    those to its right (`rest_for_one`), or all (`one_for_all`). With `escalate_to_parent` none is:
    a failure ends this supervisor and fails the child that started it. *restart* is the policy of
    children without one. *shutdown_ms* is the time that they have to end when asked to stop.

    The supervisor runs until it is stopped or no child will be started again. It ends at the latest
    with the runtime, or with the supervised child that called this. It starts without waiting, so
    no cancel leaves half of the children behind.

    >>> import harn
    >>> async def work(ctx) -> None:
    ...     if ctx.attempt < 3:
    ...         raise RuntimeError("not yet")
    >>> async def main() -> tuple[str, int]:
    ...     sup = await supervisor_start(children=[Child("worker", work)])
    ...     state = await sup.wait()
    ...     return state.status, state.children[0].restart_count
    >>> harn.run(main)
    ('completed', 2)
    """
    spec = read_spec(name, strategy, children, restart, shutdown_ms)
    runtime = current_runtime()
    if runtime.closing:
        raise HarnError("this Runtime is being closed and accepts no more supervisors")
    return runtime.service(Supervisors).start(spec)


class Supervisors:
    """A runtime's supervisors, their parents, and the last that ended."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._number = 0
        self._live: dict[Supervisor, SupervisedChild | None] = {}
        self._ended: deque[Supervisor] = deque(maxlen=ENDED_KEPT)
        self._children: dict[Task, SupervisedChild] = {}
        self._counts: Counter[str] = Counter()
        self._threads = runner_for(runtime, "auto", MOST_THREADS)
        self._leases: Leases | None = None
        self._log = runtime.event_log
        runtime.at_exit.append(self._leave)
        runtime.debug_sources["supervisors"] = self.states
        runtime.service(Metrics).add(self._samples)

    @property
    def leases(self) -> Leases:
        """The leases of this runtime's children."""
        if self._leases is None:
            from harn.supervisors.lease import Leases

            self._leases = Leases(self.runtime)
        return self._leases

    def start(self, spec: Any) -> Supervisor:
        """Create a supervisor with its owner, and start its children."""
        parent = self._parent()
        self._number += 1
        supervisor = Supervisor(self, self._number, spec, parent)
        self._live[supervisor] = parent
        if parent is not None:
            parent.inner.append(supervisor)
            assert parent.frame is not None
            add_cleanup(parent.frame, supervisor, supervisor.stop)
        supervisor._begin()
        return supervisor

    def _parent(self) -> SupervisedChild | None:
        """Return the supervised child whose task, or whose descendant's task, calls this."""
        task: Task | None = current_frame().task
        while task is not None:
            if (child := self._children.get(task)) is not None and child.alive:
                return child
            task = task.parent
        return None

    def bind(self, task: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return an async function that runs *task*; a plain one runs on a worker thread."""
        return task if is_async_callable(task) else self._threads.bind(task)

    def remember(self, task: Task, child: SupervisedChild) -> None:
        """Remember that *child* runs *task*."""
        self._children[task] = child

    def forget(self, task: Task) -> None:
        """Forget *task*, which has ended."""
        self._children.pop(task, None)

    def ended(self, supervisor: Supervisor) -> None:
        """Forget *supervisor*, here and in its parent."""
        parent = self._live.pop(supervisor, None)
        self._ended.append(supervisor)
        if parent is not None:
            parent.inner.remove(supervisor)
            if parent.frame is not None and parent.frame.cleanups is not None:
                parent.frame.cleanups.pop(supervisor, None)

    def noted(self, event: SupervisorEvent) -> None:
        """Count *event* and write it to the log."""
        if event.kind in COUNTED:
            self._counts[COUNTED[event.kind]] += 1
        payload = {
            "seq": event.seq,
            "supervisor_id": event.supervisor_id,
            "child": event.child,
            "message": event.message,
        }
        self._log.record(topics.SUPERVISOR_LIFECYCLE, event.kind, payload)

    def states(self) -> list[SupervisorState]:
        """Return the states of the last that ended, then of those that run."""
        return [each.state() for each in (*self._ended, *self._live)]

    def _samples(self) -> Iterable[Sample]:
        children = Counter(child.status for each in self._live for child in each.state().children)
        yield Sample("harn_supervisors", len(self._live))
        for status in CHILD_STATUSES:
            yield Sample("harn_supervisor_children", children[status], (status,))
        for event in sorted(set(COUNTED.values())):
            yield Sample("harn_supervisor_events_total", self._counts[event], (event,))

    async def _leave(self) -> None:
        """Stop every supervisor because the runtime closes; children are cancelled, not asked."""
        now = self.runtime.clock.monotonic()
        top = [each for each, parent in self._live.items() if parent is None]
        for supervisor in reversed(top):
            supervisor._request_stop(now)
        for supervisor in reversed(top):
            await supervisor.wait()
        if self._leases is not None:
            await self._leases.aclose()

    async def aclose(self) -> None:
        """End the worker threads."""
        await self._threads.aclose()
