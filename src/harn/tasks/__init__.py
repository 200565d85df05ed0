"""Structured concurrency: every task has an owner that waits for its end.

scope.py       spawn; scope, the block that joins what was spawned in it
task_start.py  launch: how a task starts, and which owner it gets
handle.py      TaskHandle: await it, cancel it, ask how it ended; done_callbacks.py, for
               asyncio.wait; unseen_failures.py, for errors that no caller receives
awaiting_tasks.py the note that a task awaits others, for the deadlock detector
parallel.py    parallel, each, settle, race: the same function over many items; stream.py, its
               values as they complete; parallel_engine.py, the workers under all of them
sleep.py       sleep; deadline.py, a block with a time limit; retry_calls.py, retry
isolation.py   where a function runs: loop, thread (threads.py), process (processes.py)
loop_calls.py  from_thread: how a thread calls a function on the loop
background.py  run_in_thread: a runtime on its own thread, for synchronous programs
callables.py   what can be called; closures.py, a function bound to the arguments of its submit
foreign_runtime.py run a task's function on another loop or in another process
cancel.py      cancel_graceful, is_cancelled
cleanup.py     defer, owned, disown, drop
wait_agent.py  wait_agent
results.py     Ok and Err
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.tasks.awaiting_tasks import AwaitingTasks
    from harn.tasks.background import run_in_thread
    from harn.tasks.callables import check_callable, is_async_callable
    from harn.tasks.cancel import cancel_graceful, is_cancelled
    from harn.tasks.cleanup import Owned, defer, disown, drop, owned
    from harn.tasks.closures import check_arguments, closure_of
    from harn.tasks.deadline import Deadline, deadline
    from harn.tasks.done_callbacks import DoneCallbacks
    from harn.tasks.handle import Nursery, TaskHandle
    from harn.tasks.isolation import Isolation, Runner, bind, check_isolation, runner_for
    from harn.tasks.loop_calls import from_thread, works_for
    from harn.tasks.parallel import Settled, parallel, parallel_each, parallel_race, parallel_settle
    from harn.tasks.results import Err, Ok, is_err, is_ok, unwrap, unwrap_err
    from harn.tasks.retry_calls import retry
    from harn.tasks.scope import Scope, scope, spawn
    from harn.tasks.sleep import sleep
    from harn.tasks.stream import ParallelStream, parallel_each_stream
    from harn.tasks.task_start import launch, run_in_frame, take_over
    from harn.tasks.wait_agent import wait_agent
else:
    front_door(
        __name__,
        {
            "awaiting_tasks": "AwaitingTasks",
            "background": "run_in_thread",
            "callables": "check_callable is_async_callable",
            "cancel": "cancel_graceful is_cancelled",
            "cleanup": "Owned defer disown drop owned",
            "closures": "check_arguments closure_of",
            "deadline": "Deadline deadline",
            "done_callbacks": "DoneCallbacks",
            "handle": "Nursery TaskHandle",
            "isolation": "Isolation Runner bind check_isolation runner_for",
            "loop_calls": "from_thread works_for",
            "parallel": "Settled parallel parallel_each parallel_race parallel_settle",
            "results": "Err Ok is_err is_ok unwrap unwrap_err",
            "retry_calls": "retry",
            "scope": "Scope scope spawn",
            "sleep": "sleep",
            "stream": "ParallelStream parallel_each_stream",
            "task_start": "launch run_in_frame take_over",
            "wait_agent": "wait_agent",
        },
    )

__all__ = [
    "AwaitingTasks",
    "Deadline",
    "DoneCallbacks",
    "Err",
    "Isolation",
    "Nursery",
    "Ok",
    "Owned",
    "ParallelStream",
    "Runner",
    "Scope",
    "Settled",
    "TaskHandle",
    "bind",
    "cancel_graceful",
    "check_arguments",
    "check_callable",
    "check_isolation",
    "closure_of",
    "deadline",
    "defer",
    "disown",
    "drop",
    "from_thread",
    "is_async_callable",
    "is_cancelled",
    "is_err",
    "is_ok",
    "launch",
    "owned",
    "parallel",
    "parallel_each",
    "parallel_each_stream",
    "parallel_race",
    "parallel_settle",
    "retry",
    "run_in_frame",
    "run_in_thread",
    "runner_for",
    "scope",
    "sleep",
    "spawn",
    "take_over",
    "unwrap",
    "unwrap_err",
    "wait_agent",
    "works_for",
]
