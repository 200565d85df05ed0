"""What makes events without a caller: schedules, and topics of the event log.

Each source keeps its position in the store and advances it in the transaction that accepts the
event: of several processes with the same trigger, exactly one accepts an instant or a record.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from harn.clock import sleep_until
from harn.errors import InvalidOption
from harn.storage import Event, Store, check_topic
from harn.storage.triggers import cron_last, give_up
from harn.triggers.binding import Binding
from harn.triggers.event import event_at
from harn.triggers.matching import is_wanted

if TYPE_CHECKING:
    from harn.runtime import Runtime
    from harn.triggers.cron import Schedule
    from harn.triggers.registry import Triggers

logger: logging.Logger = logging.getLogger("harn.triggers")

LONGEST_SLEEP = 30.0
"""Real seconds after which a schedule reads the wall clock again: it may have been changed."""
AGAIN_AFTER = 1.0
"""Seconds after which a source that failed is tried again."""
MOST_RUNNING = 1000
"""Running dispatches at which a source waits."""


class Sources:
    """The running sources of a runtime's triggers, by trigger id."""

    def __init__(self, runtime: Runtime, triggers: Triggers) -> None:
        self._runtime = runtime
        self._triggers = triggers
        self._running: dict[str, asyncio.Task[None]] = {}

    def begin(self, binding: Binding) -> None:
        """Start the source of *binding*, if it has one; it replaces that of the old version."""
        self.end(binding.id)
        if binding.kind == "cron":
            run = self._keep_time(binding)
        elif binding.kind == "stream":
            if binding.match.topic is None:
                raise InvalidOption("match", binding.match.as_dict(), 'a mapping with "topic"')
            check_topic(binding.match.topic)
            run = self._follow(binding, binding.match.topic)
        else:
            return
        task = self._running[binding.id] = asyncio.ensure_future(run)
        self._runtime.own(task)

    def end(self, id: str) -> None:
        """Stop the source of the trigger *id*."""
        task = self._running.pop(id, None)
        if task is not None:
            task.cancel()

    # -- schedules -----------------------------------------------------------------------------

    async def _keep_time(self, binding: Binding) -> None:
        assert binding.schedule is not None
        seen: int | None = None
        known = False
        while True:
            try:
                if not known:
                    seen = await self._last(f"cron:{binding.id}")
                    known = True
                seen = await self._fire_due(binding, binding.schedule, seen)
            except Exception as error:
                logger.warning("%s: %s; it is tried again", binding.key, error)
                await self._sleep(AGAIN_AFTER)
                continue
            await self._sleep_until_next(binding.schedule, seen)

    async def _fire_due(self, binding: Binding, schedule: Schedule, seen: int | None) -> int:
        """Fire what is due; return the instant up to which all have been fired or skipped."""
        from harn.triggers.cron import due

        clock = self._runtime.clock
        while True:
            step = due(schedule, seen, clock.now_ms())
            for instant in step.fire:
                await self._room()
                await self._tick(binding, schedule, instant)
            if seen is None:
                # After a restart, instants later than this one count as missed.
                await self._triggers.dispatcher.store.run(
                    partial(give_up, f"cron:{binding.id}", step.seen_ms)
                )
            seen = step.seen_ms
            if not step.more:
                return seen

    async def _tick(self, binding: Binding, schedule: Schedule, instant: int) -> None:
        at = event_at(instant)
        raw = {"catchup": schedule.catchup, "timezone": schedule.timezone}
        event = self._triggers.new_event(
            provider="cron",
            kind="tick",
            occurred_ms=instant,
            occurred_at_date=schedule.date(instant),
            dedupe_key=f"cron:{binding.id}:{instant // 1000}",
            payload={
                "cron_id": binding.id,
                "schedule": schedule.expression,
                "tick_at": at,
                "raw": raw,
                "payload": {"tick_at": at},
            },
        )
        await self._triggers.accept(event, [binding], instant=(f"cron:{binding.id}", instant))

    async def _sleep_until_next(self, schedule: Schedule, seen: int) -> None:
        clock = self._runtime.clock
        following = schedule.next(seen)
        left = LONGEST_SLEEP if following is None else (following - clock.now_ms()) / 1000
        if following is None or (left > LONGEST_SLEEP and not clock.is_fake):
            left = LONGEST_SLEEP
        await self._sleep(max(left, 0.001))

    # -- topics --------------------------------------------------------------------------------

    async def _follow(self, binding: Binding, topic: str) -> None:
        name = f"stream:{binding.id}"
        while True:
            try:
                after = await self._last(name)
                if after is None:
                    after = await self._runtime.event_log.head(topic)
                    await self._triggers.dispatcher.store.run(partial(give_up, name, after))
                async for record in self._runtime.event_log.subscribe(topic, after):
                    await self._room()
                    await self._take(binding, record, name)
            except Exception as error:
                logger.warning("%s: %s; it is tried again", binding.key, error)
                await self._sleep(AGAIN_AFTER)

    async def _take(self, binding: Binding, record: Event, name: str) -> None:
        try:
            event = self._triggers.new_event(
                provider="stream",
                kind=record.kind,
                occurred_ms=record.occurred_at_ms,
                tenant_id=record.headers.get("tenant_id"),
                dedupe_key=f"{name}:{record.id}",
                payload={"topic": record.topic, "offset": record.id, "payload": record.payload},
            )
            reached = [binding] if is_wanted(binding, event) else []
            await self._triggers.accept(event, reached, instant=(name, record.id))
        except InvalidOption as error:
            # A retry would fail again, and the records after it must not wait.
            logger.warning("%s: record %d is skipped: %s", binding.key, record.id, error)
            await self._triggers.dispatcher.store.run(partial(give_up, name, record.id))

    # -- both ----------------------------------------------------------------------------------

    async def _last(self, name: str) -> int | None:
        store = self._runtime.service(Store)
        return await store.run(lambda: cron_last(name), write=False)

    async def _room(self) -> None:
        while len(self._triggers.dispatcher.running) >= MOST_RUNNING:
            await self._sleep(0.05)

    async def _sleep(self, seconds: float) -> None:
        clock = self._runtime.clock
        await sleep_until(clock, clock.monotonic() + seconds)
