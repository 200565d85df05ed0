"""The events of a supervisor, which are also written to the log, and its counters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from harn.runtime import Runtime
from harn.supervisors.records import SupervisorEvent, SupervisorMetrics
from harn.supervisors.supervised_child import SupervisedChild

EVENTS_KEPT = 10_000
"""The most events that a supervisor keeps in memory; older ones are only in the log."""


class SupervisorEvents:
    """The latest events of one supervisor, oldest first, and its counters."""

    def __init__(
        self, runtime: Runtime, supervisor_id: str, on_event: Callable[[SupervisorEvent], None]
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._runtime = runtime
        self._supervisor_id = supervisor_id
        self._on_event = on_event
        self._events: deque[SupervisorEvent] = deque(maxlen=EVENTS_KEPT)
        self._seq = 0

    def note(self, child: SupervisedChild | None, kind: str, message: str = "") -> None:
        """Record an event of *kind* of *child*, or of the supervisor itself."""
        name = child.spec.name if child is not None else None
        at_ms = self._runtime.clock.now_ms()
        event = SupervisorEvent(self._seq, at_ms, self._supervisor_id, name, kind, message)
        self._seq += 1
        self._events.append(event)
        self._on_event(event)

    def events(self) -> list[SupervisorEvent]:
        """Return the events that are kept, oldest first."""
        return list(self._events)

    def metrics(self) -> SupervisorMetrics:
        """Return the counters."""
        return SupervisorMetrics(**self.counters)
