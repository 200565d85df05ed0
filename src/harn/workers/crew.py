"""Handlers start on a shared asyncio task; one that has to wait keeps that task as its own.

Most of what a task costs is spent on its beginning and its end. A handler that never waits needs
neither: the member of the crew that began it begins the next job, too. A handler that waits for
something keeps the member, which from then on is the job's own task with a handle in the
consumer's scope, and two other members are called for the jobs that are left. So all jobs of a
claim begin within a few turns of the loop, and no asyncio task that has waited for one job, or was
cancelled, works on another.

Each job has a context of its own, and a `Task` of its own as soon as something asks for it.
"""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections import deque
from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any

from harn.tasks import run_in_frame
from harn.workers.running_job import JobFrame, RunningJob

if TYPE_CHECKING:
    from harn.workers.consumer import Consumer


class Crew:
    """The asyncio tasks that begin the handlers of one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._todo: deque[RunningJob] = deque()
        self.members: set[asyncio.Task[None]] = set()
        """The tasks that were called and have not kept a job."""

    def add(self, running: RunningJob) -> None:
        """Begin the handler of *running* soon; `call` says when."""
        self._todo.append(running)

    def call(self) -> None:
        """Call two members, or as many as are useful; each that has to wait calls two more."""
        for _ in range(min(2, len(self._todo) - len(self.members))):
            member = asyncio.Task(
                self._serve(),
                loop=self._consumer.queue.runtime.loop,
                name=self._consumer.crew_name,
                context=self._consumer.context,
            )
            self.members.add(member)
            member.add_done_callback(self._ended)

    def drop(self, running: RunningJob) -> None:
        """Release a job whose handler has not begun."""
        self._todo.remove(running)
        self._consumer.stopped(running)

    def drop_all(self) -> None:
        """Release every job whose handler has not begun."""
        while self._todo:
            self.drop(self._todo[0])

    def _ended(self, member: asyncio.Task[None]) -> None:
        if member not in self.members:
            return  # its job's handle knows how it ended
        self.members.remove(member)
        error = None if member.cancelled() else member.exception()
        if error is not None:
            self._consumer.nursery.child_failed(error)
        self.call()  # a cancelled member leaves its work to another one
        if not self.members:
            self._consumer.wake()

    async def _serve(self) -> None:
        await self._begin_jobs()

    @types.coroutine
    def _begin_jobs(self) -> Generator[Any, Any, None]:
        member = asyncio.current_task()
        assert member is not None
        consumer, todo = self._consumer, self._todo
        while todo and not member.cancelling():
            running = todo.popleft()
            context = consumer.context.copy()
            work = run_in_frame(JobFrame(running), consumer.work, (running,))
            running.begins_on(member)
            try:
                awaited = context.run(work.send, None)
            except StopIteration:
                running.ended_at_once(None)
            except BaseException as error:
                running.ended_at_once(error)
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
            else:
                self.members.discard(member)
                running.keep(member)
                self.call()
                yield from _carry_on(work, context, awaited)
                return


def _carry_on(
    work: Coroutine[Any, Any, None], context: contextvars.Context, awaited: Any
) -> Generator[Any, Any, None]:
    """Run *work*, which waits for *awaited*, to its end, each of its steps in *context*."""
    try:
        while True:
            try:
                sent = yield awaited
            except GeneratorExit:
                context.run(work.close)
                raise
            except BaseException as error:
                awaited = context.run(work.throw, error)
            else:
                awaited = context.run(work.send, sent)
    except StopIteration:
        return
