"""Dead letters: list them, replay or discard one; and replay any event.

A letter's state is in the latest record of its id on `trigger.dlq`: `pending`, then `resolved` by a
replay that succeeded, or `discarded`. The letter of a worker queue's job is replayed if its trigger
is registered. A job without an event, because code enqueued it, is made ready again instead.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.errors import TriggerError
from harn.pools import Caused, CausedOutcome, causing
from harn.storage import Store
from harn.storage.triggers import change_letter, dead_letter, dead_letters, letter_draft, pending
from harn.tasks import sleep
from harn.triggers.dispatch_state import Dispatch, DispatchHandle
from harn.triggers.event import TriggerEvent, event_at, event_from
from harn.triggers.not_found import NotFound
from harn.triggers.registry import Triggers

if TYPE_CHECKING:
    from harn.runtime import Runtime

LOOKED_BACK = 100_000
"""Envelopes searched, newest first, for an event to replay."""
_PAGE = 500
WORK_WITHIN = 30.0
"""Seconds to wait for the pool tasks that a replay caused."""
LOOKED_AT = 1000
"""Unsettled envelopes, oldest first, that are searched for an unfinished replay."""
WAIT = 0.5
"""Seconds between two checks of a replay by a process that may be dead."""
WAITS = 90
"""How often such a replay is checked before `replay` raises."""


@dataclass(frozen=True, slots=True)
class Letters:
    """A page of pending dead letters, and how many there are in all.

    *last* is the place of the last one: `listed(after=last)` continues behind it.
    """

    depth: int
    entries: list[dict[str, Any]]
    last: int = 0


Finish = Callable[[Caused], Awaitable[CausedOutcome]]
"""Waits for the pool tasks that a dispatch caused."""


async def wait_for_work(caused: Caused) -> CausedOutcome:
    """Wait for pool tasks, 30 seconds at most. Cancelling leaves them alone."""
    return await caused.wait(WORK_WITHIN)


class DeadLetters:
    """The dead letters of a runtime's store: `runtime.service(DeadLetters)`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._log = runtime.event_log

    async def listed(self, after: int = 0, limit: int = 100) -> Letters:
        """Return the oldest pending letters."""
        depth, found = await self._store.run(lambda: dead_letters(after, limit), write=False)
        entries = [await self._record(letter.entry) for letter in found]
        return Letters(depth, entries, found[-1].entry if found else after)

    async def get(self, id: str) -> dict[str, Any]:
        """Return the letter *id*, or raise `TriggerError`."""
        found = await self._store.run(lambda: dead_letter(id), write=False)
        if found is None:
            raise NotFound(f"no dead letter {id!r}")
        return await self._record(found.entry)

    async def discard(self, id: str, reason: str | None = None) -> dict[str, Any]:
        """Mark the letter *id* as discarded: it is not replayed again.

        Cancelling may leave it discarded.
        """
        return await self._close(id, "discarded", reason or "discarded by hand")

    async def replay(self, id: str, finish: Finish | None = None) -> DispatchHandle:
        """Dispatch the letter *id* again; it is resolved if its work succeeds.

        Its work is the dispatch and the pool tasks that the dispatch caused. *finish* waits for
        those, by default for 30 seconds. If they do not complete, the handle says `failed`. A job
        that code enqueued is made ready again, as by `queue.retry`, and its letter is resolved.
        Cancelling stops waiting; the dispatch continues, and the letter stays pending.
        """
        letter = await self.get(id)
        if letter["state"] != "pending":
            raise TriggerError(
                f"dead letter {id} is {letter['state']}; only a pending one can be replayed"
            )
        if _is_of_a_plain_job(letter):
            return await self._retry_job(letter)
        event = _event(letter.get("event"), f"dead letter {id}")
        binding_id = str(letter.get("binding_id") or "")
        handle = await self._again(event, binding_id, finish)
        if handle.status == "dispatched":
            await self._close(id, "resolved", "replay_succeeded")
        return handle

    async def _retry_job(self, letter: dict[str, Any]) -> DispatchHandle:
        from harn.workers import WorkerQueue

        queue, job_id = letter["queue"], letter["job_event_id"]
        if not await WorkerQueue(self._runtime, queue, None).retry(job_id):
            raise TriggerError(f"job {job_id} of queue {queue!r} is not dead any more")
        ready = {"queue": queue, "job_id": job_id, "status": "ready"}
        return DispatchHandle(
            letter.get("event_id") or "", f"worker://{queue}", 0, "dispatched", ready
        )

    async def replay_event(
        self, event_id: str, binding_id: str | None = None, finish: Finish | None = None
    ) -> list[DispatchHandle]:
        """Dispatch an earlier event again, to the triggers that it reached then.

        *finish* is as in `replay`. Cancelling stops waiting; the dispatches continue.
        """
        found = [item async for item in self._envelopes(event_id)]
        if not found:
            raise NotFound(f"no event {event_id!r} in the last {LOOKED_BACK:,} envelopes")
        handles = []
        for of, event in sorted(found, key=lambda item: item[0]):
            if binding_id is None or of == binding_id:
                handles.append(await self._again(event, of, finish))
        return handles

    async def _again(
        self, event: TriggerEvent, binding_id: str, finish: Finish | None
    ) -> DispatchHandle:
        triggers = self._runtime.service(Triggers)
        triggers.get(binding_id)
        with causing() as caused:
            dispatch = await self._unfinished(event.id, binding_id)
            if dispatch is None:
                dispatch = await triggers.replay(event, binding_id)
        handle = await dispatch.wait()
        if handle.status != "dispatched":
            return handle
        work = await (finish or wait_for_work)(caused)
        return handle if work.is_well else replace(handle, status="failed", error=str(work))

    async def _unfinished(self, event_id: str, binding_id: str) -> Dispatch | DispatchHandle | None:
        """Find a replay of the event that has not ended, and take it over if its process died.

        Otherwise the event could be replayed twice: by this call, and by the process that takes
        over a replay that a crash interrupted. A process counts as dead half a minute after its
        last renewal; until then this waits, and returns the outcome of the replay if it ends.
        """
        triggers = self._runtime.service(Triggers)
        before = None
        for _ in range(WAITS):
            found = await self._unsettled(event_id, binding_id)
            if found is None:
                return None if before is None else await self._ended(before)
            before = found
            running = triggers.dispatcher.running.get(found)
            dispatch = running or await triggers.recovery.take(found, binding_id)
            if dispatch is not None:
                return dispatch
            await sleep(WAIT)
        raise TriggerError(
            f"another process is replaying event {event_id} to {binding_id}; wait until it ends"
        )

    async def _ended(self, envelope: int) -> DispatchHandle | None:
        """Return how the dispatch of an envelope ended, as another process has just written."""
        head = await self._log.head(topics.TRIGGER_OUTBOX)
        for record in await self._log.read(topics.TRIGGER_OUTBOX, max(0, head - _PAGE), _PAGE):
            outcome = record.payload
            if outcome.get("envelope") == envelope:
                is_done = outcome["status"] in ("succeeded", "skipped")
                return DispatchHandle(
                    outcome["event_id"],
                    outcome["trigger_id"],
                    self._runtime.service(Triggers).get(outcome["trigger_id"]).version,
                    "dispatched" if is_done else outcome["status"],
                    outcome.get("result"),
                    outcome.get("error"),
                    replay_of_event_id=outcome.get("replay_of_event_id"),
                )
        return None

    async def _unsettled(self, event_id: str, binding_id: str) -> int | None:
        """Return the envelope of a replay of the event that is not settled."""
        _, found = await self._store.run(partial(pending, LOOKED_AT), write=False)
        for each in found:
            if each.binding_id == binding_id:
                [*records] = await self._log.read(topics.TRIGGER_ENVELOPES, each.envelope - 1, 1)
                if records and records[0].payload.get("replay_of_event_id") == event_id:
                    return each.envelope
        return None

    async def _envelopes(self, event_id: str) -> AsyncIterator[tuple[str, TriggerEvent]]:
        head = await self._log.head(topics.TRIGGER_ENVELOPES)
        end = head
        while end > 0 and end > head - LOOKED_BACK:
            start = max(0, end - _PAGE)
            page = await self._log.read(topics.TRIGGER_ENVELOPES, start, end - start)
            matching = [record for record in page if record.headers.get("event_id") == event_id]
            for record in matching:
                yield str(record.payload["trigger_id"]), _event(record.payload["event"], event_id)
            if matching:
                return
            end = start

    async def _close(self, id: str, state: str, reason: str) -> dict[str, Any]:
        letter = await self.get(id)
        at = event_at(self._runtime.clock.now_ms())
        history = [*letter.get("retry_history", ()), {"at": at, "status": reason}]
        closed = {**letter, "state": state, "retry_history": history}
        change = partial(change_letter, id, "pending", letter_draft(closed))
        if not await self._store.run(change):
            raise TriggerError(f"dead letter {id} is no longer pending")
        return closed

    async def _record(self, entry: int) -> dict[str, Any]:
        found = await self._log.read(topics.TRIGGER_DLQ, entry - 1, 1)
        return dict(found[0].payload) if found else {}


def _is_of_a_plain_job(letter: dict[str, Any]) -> bool:
    """Tell whether the letter is of a queue's job that no trigger could handle."""
    if not letter.get("queue"):
        return False
    if not letter.get("binding_id"):
        return True
    try:
        event_from(letter["event"])
    except (ValueError, TypeError):
        return True
    return False


def _event(record: Any, what: str) -> TriggerEvent:
    try:
        return event_from(record)
    except (ValueError, TypeError):
        raise TriggerError(f"{what} holds no event that can be dispatched") from None
