"""What a supervisor did: its events, which also go to the log, and its counters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from harn.runtime import Runtime
from harn.supervisors.records import SupervisorEvent, SupervisorMetrics
from harn.supervisors.supervised_child import SupervisedChild

EVENTS_KEPT = 10_000
"""Events that a supervisor keeps in memory; older ones are on the log's topic only."""


class SupervisorEvents:
    """The events of one supervisor, oldest first, and how often the countable ones happened."""

    def __init__(
        self, runtime: Runtime, supervisor_id: str, tell: Callable[[SupervisorEvent], None]
    ) -> None:
        self.counters: Counter[str] = Counter()
        self._runtime = runtime
        self._supervisor_id = supervisor_id
        self._tell = tell
        self._events: deque[SupervisorEvent] = deque(maxlen=EVENTS_KEPT)
        self._seq = 0

    def note(self, member: SupervisedChild | None, kind: str, message: str = "") -> None:
        """Write down that *kind* happened, to *member* or to the supervisor itself."""
        child = member.spec.name if member is not None else None
        at_ms = self._runtime.clock.now_ms()
        event = SupervisorEvent(self._seq, at_ms, self._supervisor_id, child, kind, message)
        self._seq += 1
        self._events.append(event)
        self._tell(event)

    def events(self) -> list[SupervisorEvent]:
        """Return what is kept, oldest first."""
        return list(self._events)

    def metrics(self) -> SupervisorMetrics:
        """Return the counters."""
        return SupervisorMetrics(**self.counters)
