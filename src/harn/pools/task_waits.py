"""`pool_wait`: wait for tasks of any pool, given as handles, snapshots or their dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, overload

from harn.current import current_runtime
from harn.errors import InvalidOption, PoolNotFound
from harn.pools.registry import PoolRegistry
from harn.pools.snapshots import TaskSnapshot
from harn.pools.task import PoolTask

T = TypeVar("T")

Waitable = PoolTask[T] | TaskSnapshot[T]


@overload
async def pool_wait(tasks: Waitable[T]) -> TaskSnapshot[T]: ...


@overload
async def pool_wait(tasks: Mapping[str, Any]) -> TaskSnapshot[Any]: ...


@overload
async def pool_wait(tasks: Iterable[Waitable[T]]) -> list[TaskSnapshot[T]]: ...


@overload
async def pool_wait(
    tasks: Iterable[Waitable[Any] | Mapping[str, Any]],
) -> list[TaskSnapshot[Any]]: ...


async def pool_wait(tasks: Any) -> Any:
    """Wait for a task, or for every task of a list, and return the final snapshot of each.

    A snapshot, or its dict, can be given instead of its task. Results are in the order of the
    list. Cancelling does not cancel the tasks.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     pool = await harn.pool_create(max_concurrent=2)
    ...     tasks = [await pool.submit(lambda: 1), await pool.submit(lambda: 1 / 0)]
    ...     return [outcome.status for outcome in await harn.pool_wait(tasks)]
    >>> harn.run(main)
    ['completed', 'failed']
    """
    if isinstance(tasks, PoolTask | TaskSnapshot | Mapping):
        return await _task(tasks).wait()
    if isinstance(tasks, str) or not isinstance(tasks, Iterable):
        raise InvalidOption("tasks", tasks, "a pool task, or a list of them")
    given = [each if type(each) is PoolTask else _task(each) for each in tasks]
    # When the first task of a long list has ended, most others have too: no wait for those.
    return [
        task.snapshot()
        if task._finished_ms is not None and task._slots.journal is None
        else await task.wait()
        for task in given
    ]


def _task(given: object) -> PoolTask:
    if isinstance(given, PoolTask):
        return given
    if isinstance(given, TaskSnapshot):
        pool_id, task_id = given.pool_id, given.id
    elif isinstance(given, Mapping) and isinstance(given.get("pool_id"), str) and "id" in given:
        pool_id, task_id = given["pool_id"], given["id"]
    else:
        raise InvalidOption("tasks", given, "a pool task, or a list of them")
    pool = current_runtime().service(PoolRegistry).by_id(pool_id)
    if pool is None:
        raise PoolNotFound(f"pool not found: {pool_id}")
    task = pool._found().find(task_id)
    if task is None:
        raise PoolNotFound(
            f"pool {pool.name!r} has no task {task_id}; retention may have dropped it"
        )
    return task
