"""A pipeline pool and its journal: what is written when, and what a restart makes of it.

A submit is acknowledged, and a closure begins, only when the disk has it. A durable call that may
run once also waits for its `start`: after a crash it is either still queued or known to have
begun. Ends are written behind the work; `wait()` returns when they are safe.

After a restart a queued durable call is queued again, in its old order, and so is a running one
that may `rerun`. Everything else that had not ended has failed and says why: `never_started` or
`interrupted`. So has a durable call whose function is not registered: it must not hold back the
pool forever, and its error names what to import.

A process that soon ends, such as a command, leaves the *backlog*: all that had not ended stays in
the journal, as the process found it, for the next opener. Only a task whose idempotency key is
submitted again is continued.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from harn.durable_calls import (
    DurableCall,
    DurableFunction,
    durable_function,
    durable_function_named,
    encode_call,
    split_call,
)
from harn.durable_types import without_models
from harn.error_text import repr_of
from harn.errors import StorageError
from harn.exact_json import to_exact_json
from harn.pools.audit import Submitted
from harn.pools.idempotency_keys import binding, call_fingerprint
from harn.pools.journal import Journal, UnwrittenLine
from harn.pools.journal_file import journal_name
from harn.pools.journal_records import (
    LONGEST_RESULT,
    TOGETHER,
    VERSION,
    EndRecord,
    PoolRecord,
    StartRecord,
    StepLine,
    TaskRecord,
    TasksRecord,
    WithdrawRecord,
    encode,
)
from harn.pools.snapshots import TERMINAL
from harn.pools.task import PoolTask, Reloaded

if TYPE_CHECKING:
    from harn.pools.pool import Pool

logger: logging.Logger = logging.getLogger("harn.pools")


class Persistence:
    """The journal of one pool, seen from the pool; *leaves_backlog* leaves that as it is."""

    def __init__(self, pool: Pool, *, leaves_backlog: bool = False) -> None:
        self._warned = False
        self._together: tuple[UnwrittenLine, list[TaskRecord]] | None = None
        """The line of the submits that are made together just now, and their records."""
        self._leaves_backlog = leaves_backlog
        self.held: dict[PoolTask, TaskRecord] = {}
        """The backlog, if it is left to the next opener."""
        slots = pool._slots
        runtime, options = slots.runtime, slots.options
        assert options.scope_id is not None
        self._admission = pool._admission
        self._slots = slots
        header = PoolRecord(
            v=VERSION,
            id=pool.id,
            name=pool.name,
            scope=pool.scope,
            scope_id=options.scope_id,
            max_concurrent=pool.max_concurrent,
            created_at=runtime.clock.now_ms(),
            submit_counter=0,
        )
        self._journal = Journal(
            runtime.state_dir / "pools" / journal_name(options.scope_id, pool.name),
            header,
            loop=runtime.loop,
            activity=runtime.clock.activity,
            keep=self._keep,
        )

    async def open(self) -> None:
        """Open the journal and restore what it holds; durable work continues from here.

        Cancelling closes it again.
        """
        await self._journal.open()
        try:
            self._restore()
            await self._journal.synced(self._journal.last_ticket)
        except BaseException:
            await self._journal.aclose()
            raise
        self._slots.journal = self
        for _ in range(self._slots.max_concurrent):
            self._slots.fill_slot()

    def submitted(self, task: PoolTask) -> None:
        """Journal a new task."""
        call = durable_call_of(task._body)
        if call is None and not self._warned:
            self._warn(task._body)
        extras = task._own_extras()
        extras.call = call
        if self._together is None:
            extras.ticket = self._journal.append(encode(self._new_record(task)))
        else:
            line, records = self._together
            extras.ticket = line.ticket
            records.append(self._new_record(task))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Journal the submits of the block, which must not await, as one line.

        The line comes before those of tasks that end inside the block, such as a task that is
        evicted. After an error in the block none of its submits is in the journal.
        """
        line, records = self._together = self._journal.reserve(), []
        try:
            yield
            if records:
                line.data = encode(TasksRecord(TOGETHER, records))
        finally:
            self._together = None

    def _warn(self, fn: object) -> None:
        """Say once for each pool that this closure will not survive the process."""
        self._warned = True
        logger.warning(
            "pool %r keeps a journal, but %.80r is not a durable call: a restart finds it as a "
            "failed marker and does not run it; use submit(fn, *args) with a function that has "
            "@harn.durable, and JSON arguments (this is said once for each pool)",
            self._slots.names.name,
            getattr(fn, "__qualname__", fn),
        )

    async def acknowledge(self, task: PoolTask) -> None:
        """Wait until *task*'s submit is safe; undo it if that fails or we are cancelled."""
        try:
            written = self._journal.written(task._extras.ticket)
            if written is not None:
                await written
        except (StorageError, asyncio.CancelledError):
            self.undo([task])
            raise

    async def acknowledge_all(self, tasks: Sequence[PoolTask]) -> None:
        """Wait until the submits of *tasks* are safe; undo them if that fails or we are cancelled.

        They share one line, except those that were rejected.
        """
        try:
            for ticket in dict.fromkeys(task._extras.ticket for task in tasks):
                await self._journal.synced(ticket)
        except (StorageError, asyncio.CancelledError):
            self.undo(tasks)
            raise

    def undo(self, tasks: Sequence[PoolTask]) -> None:
        """Withdraw submits that were not acknowledged, from the pool and from the journal."""
        # The newest first: those that hold a slot leave it when no other of them is queued.
        withdrawn = [task for task in reversed(tasks) if self._slots.withdraw(task)]
        if withdrawn:
            first, *more = (task._submitted.seq for task in withdrawn)
            version = TOGETHER if more else VERSION
            self._journal.append(encode(WithdrawRecord(version, first, more)), owed=True)

    async def starting(self, task: PoolTask) -> None:
        """Wait until *task* may begin. Cancelling leaves it to the caller."""
        await self._journal.synced(task._extras.ticket)
        if task._finished_ms is not None:
            return  # its submit was withdrawn: the journal does not know it any more
        call = task._extras.call
        assert task._started_ms is not None
        start = encode(StartRecord(VERSION, task._submitted.seq, task._started_ms))
        may_repeat = call is None or call.function.rerun
        ticket = self._journal.append(start, owed=may_repeat)
        if not may_repeat:
            await self._journal.synced(ticket)
        if task._body is None and call is not None:
            task._load_call(call)

    def ended(self, task: PoolTask) -> None:
        """Journal the end of a task; the whole task, if the journal does not know it yet."""
        extras = task._own_extras()
        if extras.ticket == 0:
            extras.ticket = self._journal.append(encode(self._record(task)), ends=1)
            return
        assert task._finished_ms is not None
        seq, error = task._submitted.seq, _text(task.error)
        end = EndRecord(VERSION, seq, task._finished_ms, task.status, error=error)
        if task.status == "completed":
            _write_result(end, task)
        elif extras.reason is not None:
            end.rejection_reason, end.rejection_policy, end.stale_reason = extras.reason
        extras.ticket = self._journal.append(encode(end), owed=True, ends=1)

    async def step_done(self, line: StepLine) -> None:
        """Journal a step of a durable call, and wait until it is safe.

        Cancelling does not stop the write.
        """
        await self._journal.synced(self._journal.append(encode(line)))

    async def synced(self, ticket: int) -> None:
        """Wait until the line of *ticket* is safe. Cancelling does not stop the write."""
        await self._journal.synced(ticket)

    async def aclose(self) -> None:
        """Write what is left and close the file; a cancel is raised after that."""
        await self._journal.aclose()

    def abandon(self) -> None:
        """Close the file as a process that dies would."""
        self._journal.abandon()

    def _keep(self) -> tuple[int, int]:
        retention = self._slots.options.retention
        return retention.count, self._slots.now() - retention.age_ms

    def _new_record(self, task: PoolTask) -> TaskRecord:
        """Return the record of a submit. (By position, because every submit makes one.)"""
        extras, submitted = task._extras, task._submitted
        call: DurableCall | None = extras.call
        return TaskRecord(
            VERSION,
            submitted.seq,
            submitted.task_id,
            submitted.at,
            submitted.by,
            "queued",
            submitted.priority,
            submitted.key,
            extras.labels or None,
            submitted.idempotency_key,
            extras.binding[0] if isinstance(extras.binding, tuple) else None,
            None if call is None else call.function.name,
            msgspec.UNSET if call is None else msgspec.Raw(call.arguments),
        )

    def _record(self, task: PoolTask) -> TaskRecord:
        """Return the record of the whole *task* as it stands."""
        record, extras = self._new_record(task), task._extras
        record.status = task.status
        record.started_at, record.finished_at = task._started_ms, task._finished_ms
        record.error = _text(task.error)
        if extras.reason is not None:
            record.rejection_reason, record.rejection_policy, record.stale_reason = extras.reason
        return record

    # After a restart.

    def _restore(self) -> None:
        """Fill the pool from the journal's state."""
        state, ended = self._journal.state, self._slots.ended
        pool_record = state.pool
        assert pool_record is not None
        for status, number in pool_record.dropped.items():
            ended.counts[status] = ended.counts.get(status, 0) + number
        self._admission.last_seq = state.last_seq
        for seq in state.ended:
            self._restore_ended(state.tasks.pop(seq))
        context = contextvars.copy_context()
        for seq in sorted(state.tasks):
            record = state.tasks[seq]
            task = self._known(record)
            self._rebind(task, record)
            if self._leaves_backlog:
                self._hold(task, record)
            else:
                self._restore_unfinished(task, record, context)
        self._journal.forget_state()

    def _hold(self, task: PoolTask, record: TaskRecord) -> None:
        task._queue_again()  # for the next opener
        task._own_extras().ticket = -1  # known to the journal, and safe
        self.held[task] = record

    def take_up(self, task: PoolTask) -> None:
        """Continue *task*, which a submit asks for, if it is held back."""
        record = self.held.pop(task, None)
        if record is not None:
            if record.started_at is not None:
                task._start(record.started_at)
            self._restore_unfinished(task, record, contextvars.copy_context())
            self._slots.fill_slot()

    def _restore_ended(self, record: TaskRecord) -> None:
        task = self._known(record)
        body: Any = record.error
        if record.status == "completed":
            function = None if record.call is None else durable_function_named(record.call)
            body = Reloaded(record.result, record.result_text, function)
        status = record.status if record.status in TERMINAL else "failed"
        at = record.submitted_at if record.finished_at is None else record.finished_at
        task._finish(status, body, at)
        if record.rejection_reason or record.stale_reason:
            task._explain(record.rejection_reason, record.rejection_policy, record.stale_reason)
        if record.status != "rejected":
            self._rebind(task, record)
        self._slots.ended.counts[task.status] += 1
        self._slots.ended.tasks.append(task)

    def _restore_unfinished(
        self, task: PoolTask, record: TaskRecord, context: contextvars.Context
    ) -> None:
        began = record.status != "queued"
        function = None if record.call is None else durable_function_named(record.call)
        if function is not None and (function.rerun or not began):
            args = bytes(record.args) if isinstance(record.args, msgspec.Raw) else b"[[],{}]"
            extras = task._own_extras()
            extras.call = DurableCall(function, args)
            extras.steps = record.steps
            extras.ticket = -1  # known to the journal, and safe
            task._queue_again(context.copy())
            self._slots.queue.push(task)
            return
        self._mark_stale(task, "interrupted" if began else "never_started", record, function)

    def _mark_stale(
        self, task: PoolTask, reason: str, record: TaskRecord, function: DurableFunction | None
    ) -> None:
        why = f"reloaded as stale after process restart: {reason}"
        if record.call is not None and function is None:
            why += f"; {record.call} is not registered, import it before pool_create"
        task._finish("failed", why, self._slots.now())
        task._explain(stale=reason)
        task._own_extras().ticket = -1
        self._slots.ended.counts["failed"] += 1
        self._slots.ended.tasks.append(task)
        self.ended(task)

    def _known(self, record: TaskRecord) -> PoolTask:
        key = record.key
        submitted = Submitted(
            self._slots.names,
            record.seq,
            record.submitted_at,
            record.priority,
            key,
            record.idempotency_key,
            record.submitted_by,
        )
        task = PoolTask(self._slots, submitted, None, record.priority, key, None)
        if record.labels:
            self._admission.label(task, record.labels)
        if record.started_at is not None:
            task._start(record.started_at)
        return task

    def _rebind(self, task: PoolTask, record: TaskRecord) -> None:
        if record.idempotency_key is None:
            return
        extras = task._own_extras()
        if record.call is not None:
            args = bytes(record.args) if isinstance(record.args, msgspec.Raw) else b""
            extras.fingerprint = call_fingerprint(record.call, args)
        self._slots.keys.bind(binding(record.tenant_id, record.idempotency_key), task)


def durable_call_of(closure: Callable[..., Any]) -> DurableCall | None:
    """Return *closure* as a call that can be stored; None if it has to stay in this process."""
    fn, positional, keywords = split_call(closure)
    function = durable_function(fn)
    if function is None:
        return None
    arguments = encode_call(function, positional, keywords)
    if arguments is None:
        logger.warning("%s: its arguments are not JSON, so this call is not durable", function.name)
        return None
    return DurableCall(function, arguments)


def _write_result(end: EndRecord, task: PoolTask) -> None:
    written = to_exact_json(without_models(task.result))
    if written is not None:
        end.result = msgspec.Raw(written)
    else:
        end.result_text, end.result_omitted = repr_of(task.result, LONGEST_RESULT), True


def _text(error: str | None) -> str | None:
    return None if error is None else error.encode("utf-8", "replace").decode()
