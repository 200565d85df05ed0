"""Scopes of cells, maps and mailboxes: which tasks share one.

| scope           | shared by                                                              |
|-----------------|------------------------------------------------------------------------|
| `task`          | this task only                                                         |
| `task_group`    | one `parallel*` call's tasks; outside one, the run or the whole runtime |
| `workflow_run`  | the run; outside one, as `task_group`                                   |
| `agent_session` | the agent session; outside one, the whole runtime                       |
| `tenant`        | one tenant                                                              |
| `process`       | everything in this runtime                                              |

A cell, map or mailbox stays in the scope it was opened in, also when another task uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, cast, get_args

from harn.context import Task
from harn.errors import InvalidOption, did_you_mean
from harn.naming import check_data, check_name
from harn.runtime import Runtime
from harn.sync.wait_queue import guard

Scope = Literal["task", "task_group", "workflow_run", "agent_session", "tenant", "process"]
T = TypeVar("T")

SCOPES: tuple[str, ...] = get_args(Scope)
ALIASES = {"global": "process"}
ELSEWHERE = {"durable", "external"}
MOST_PASSING = 10_000
"""The most tasks and groups whose state is kept; that of the oldest ended ones is dropped first."""


def resolve_scope(task: Task, scope: str, tenant_id: str | None = None) -> tuple[str, str]:
    """Return the scope's name and the id of the task, group, run, session or tenant."""
    name = _checked(scope)
    if tenant_id is not None and name != "tenant":
        raise InvalidOption("tenant_id", tenant_id, 'only given together with scope="tenant"')
    ambient, root = task.ambient, task.root.id
    match name:
        case "task":
            return name, task.id
        case "task_group":
            return name, task.group_id or ambient.run_id or root
        case "workflow_run":
            return name, ambient.run_id or task.group_id or root
        case "agent_session":
            return name, ambient.agent_session_id or ambient.root_agent_session_id or root
        case "tenant":
            return name, _tenant(ambient.tenant_id, tenant_id)
        case _:
            return name, "process"


def _checked(scope: object) -> str:
    name = scope.replace("-", "_") if isinstance(scope, str) else ""
    name = ALIASES.get(name, name)
    if name in ELSEWHERE:
        raise InvalidOption(
            "scope",
            scope,
            f"{', '.join(SCOPES)}; state that outlives the process is kept by store_get, store_set "
            "and store_cas (agent_state_* for an agent session), or in a store of your own",
        )
    if name not in SCOPES:
        raise InvalidOption("scope", scope, f"{', '.join(SCOPES)}{did_you_mean(name, SCOPES)}")
    return name


def _tenant(own: str | None, asked: str | None) -> str:
    if asked is not None:
        check_data("tenant_id", asked)
    if own is not None and asked is not None and asked != own:
        raise InvalidOption("tenant_id", asked, f"{own!r}, the tenant this task works for")
    if own is None and asked is None:
        raise InvalidOption(
            "scope", "tenant", "used with a tenant: give tenant_id, or open the Runtime with one"
        )
    return cast(str, asked or own)


class Namespaces:
    """The named things of one runtime, by kind, scope and key.

    The state of ended tasks, groups and runs is dropped, oldest first, when there are
    `MOST_PASSING` of them; everything else is kept as long as the runtime.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lasting: dict[tuple[str, str], dict[tuple[str, str], Any]] = {}
        self._passing: dict[tuple[str, str], dict[tuple[str, str], Any]] = {}

    def open(self, kind: str, where: tuple[str, str], key: str, make: Callable[[], T]) -> T:
        """Return the *kind* under *key* in the scope *where*, made by *make* if it is new."""
        _check_key(kind, key)
        with guard:
            found = self._space(where).get((kind, key))
            if found is None:
                found = self._space(where)[kind, key] = make()
            return cast(T, found)

    def find(self, kind: str, where: tuple[str, str], key: str) -> Any:
        """Return the *kind* under *key* in the scope *where*, or None."""
        _check_key(kind, key)
        with guard:
            spaces = self._passing if where[0] in ("task", "task_group") else self._lasting
            return spaces.get(where, {}).get((kind, key))

    def _space(self, where: tuple[str, str]) -> dict[tuple[str, str], Any]:
        spaces = self._passing if where[0] in ("task", "task_group") else self._lasting
        found = spaces.get(where)
        if found is None:
            if len(spaces) >= MOST_PASSING and spaces is self._passing:
                self._drop_the_ended()
            found = spaces[where] = {}
        return found

    def _drop_the_ended(self) -> None:
        alive = {
            id
            for task in self._runtime.tasks
            for id in (task.id, task.group_id, task.ambient.run_id)
        }
        ended = [where for where in self._passing if where[1] not in alive]
        for where in ended[: MOST_PASSING // 2]:
            del self._passing[where]


def _check_key(kind: str, key: object) -> None:
    if kind == "mailbox":
        check_name("name", key)
    elif not isinstance(key, str) or not key:
        raise InvalidOption("key", key, "a non-empty string")
