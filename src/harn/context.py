"""The running task: its place in the tree, its frame, and the work that it belongs to.

A `Task` is an id, a parent and a name, with what it inherited. Inside it is a chain of `Frame`s:
the task's own, then one for each open `scope`. Only the innermost frame is in a contextvar;
asyncio copies it into child tasks, which is the specification's inheritance by snapshot.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from harn.durable_work import DurableWork
    from harn.runtime import Runtime

Place = asyncio.Future[Any] | Callable[[], None]
"""Where a graceful stop reaches a waiting task: it gets an exception, or is called."""


class Ambient(msgspec.Struct, frozen=True):
    """The work that a task belongs to; inherited whole, replaced, never changed."""

    pipeline_id: str | None = None
    workflow_id: str | None = None
    run_id: str | None = None
    stage_id: str | None = None
    worker_id: str | None = None
    agent_session_id: str | None = None
    parent_agent_session_id: str | None = None
    root_agent_session_id: str | None = None
    agent_name: str | None = None
    trigger_id: str | None = None
    trigger_event_id: str | None = None
    binding_key: str | None = None
    tenant_id: str | None = None
    org_id: str | None = None
    provider: str | None = None
    scheduler_key: str | None = None
    runner: str | None = None
    capacity_class: str | None = None

    @property
    def submitted_by(self) -> str:
        """Name the submitter of work from here: workflow, agent session, worker, or `"user"`."""
        return self.workflow_id or self.agent_session_id or self.worker_id or "user"


class Work(msgspec.Struct, frozen=True):
    """A job or a pool task: *name* is the name of its queue or pool."""

    kind: Literal["job", "pool_task"]
    name: str
    id: str


class Task:
    """A task in the tree: its names, what it inherited, and whether it was asked to stop."""

    __slots__ = (
        "__weakref__",
        "aio",
        "ambient",
        "cancel_from",
        "cancel_requested",
        "counters",
        "durable",
        "group_id",
        "id",
        "name",
        "parent",
        "parked",
        "runtime",
        "shielded",
        "stop_raised",
        "thread",
        "values",
        "waiting",
    )

    def __init__(
        self,
        runtime: Runtime,
        id: str,
        name: str,
        parent: Task | None,
        *,
        group_id: str | None = None,
        ambient: Ambient | None = None,
        cancel_from: Task | None = None,
    ) -> None:
        if ambient is None:
            ambient = runtime.ambient if parent is None else parent.ambient
        self._begin(runtime, id, name, parent, group_id, ambient, cancel_from)

    def _begin(
        self,
        runtime: Runtime,
        id: str,
        name: str,
        parent: Task | None,
        group_id: str | None,
        ambient: Ambient,
        cancel_from: Task | None,
    ) -> None:
        self.runtime: Runtime = runtime
        self.id: str = id
        self.name: str = name
        self.parent: Task | None = parent
        self.group_id: str | None = group_id
        self.cancel_requested: bool = False
        self.cancel_from: Task | None = cancel_from
        """The task whose cancel is also this one's: its parent, except in pools and supervisors."""
        self.counters: dict[str, int] | None = None
        self.durable: DurableWork | None = None
        """The job or durable pool task that this task carries out; see `durable_work.py`."""
        self.aio: asyncio.Task[Any] | None = None
        """The asyncio task that runs this one, while one does."""
        self.thread: str | None = None
        """The worker thread or process that runs this one, while one does."""
        self.parked: dict[Place, None] | None = None
        """Where a graceful stop reaches this task, for each wait; see `graceful_stop.py`."""
        self.shielded: int = 0
        """How many cleanups are running, which a graceful stop does not interrupt."""
        self.stop_raised: BaseException | None = None
        """The `TaskCancelled` that a graceful stop raised in this task."""
        self.waiting: Any = None
        """What this task is blocked on, where a primitive knows it; see `sync/deadlock.py`."""
        self.ambient: Ambient = ambient
        self.values: Mapping[str, Any] = {} if parent is None else parent.values

    @property
    def root(self) -> Task:
        """The task at the top of the tree."""
        task = self
        while task.parent is not None:
            task = task.parent
        return task

    @property
    def work(self) -> Work | None:
        """The job or pool task that this task carries out, or belongs to through its parents."""
        return None if self.parent is None else self.parent.work

    @property
    def cancelled(self) -> bool:
        """Whether this task, or one whose cancellation is also its own, was asked to stop."""
        task: Task | None = self
        while task is not None:
            if task.cancel_requested:
                return True
            task = task.cancel_from
        return False

    def child(self, name: str) -> Task:
        """Return a new task below this one, with what it inherits, for `spawn`."""
        # Measured: two calls of Python take half of the time of one `__init__`, which C calls.
        task = _new(Task)
        task._begin(
            self.runtime, self.child_id("spawn"), name, self, self.group_id, self.ambient, self
        )
        return task

    def item(self, id: str, name: str, group_id: str) -> Task:
        """Return a new task below this one, with what it inherits, for an item of *group_id*."""
        task = _new(Task)
        task._begin(self.runtime, id, name, self, group_id, self.ambient, self)
        return task

    def child_id(self, kind: str) -> str:
        """Return `<id>:<kind>:<n>`, counting from 1 for each *kind*."""
        if self.counters is None:
            self.counters = {}
        number = self.counters[kind] = self.counters.get(kind, 0) + 1
        return f"{self.id}:{kind}:{number}"

    def __repr__(self) -> str:
        return f"<Task {self.id} {self.name!r}>"


_new = Task.__new__


class WorkTask(Task):
    """The task that carries out *work*."""

    __slots__ = ("_work",)

    def __init__(self, *args: Any, work: Work | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._work = work

    @property
    def work(self) -> Work | None:
        """The job or pool task that this task carries out."""
        return self._work


class Frame:
    """Where spawns, defers and permits of the code now running belong.

    The `tasks` room gives the two slots their meaning: *nursery* takes what is spawned here
    (None: detached), *cleanups* (owner: what to call) unwinds last in, first out when the frame
    ends; an owner that is done early deletes its own entry.
    """

    __slots__ = ("cleanups", "nursery", "task")

    def __init__(self, task: Task, nursery: Any = None) -> None:
        self.task: Task = task
        self.nursery: Any = nursery
        self.cleanups: dict[Any, Callable[[], Any]] | None = None


def add_cleanup(frame: Frame, owner: Any, cleanup: Callable[[], Any]) -> None:
    """Let *frame* call *cleanup* when it ends, unless *owner* has an entry there already."""
    if frame.cleanups is None:
        frame.cleanups = {}
    frame.cleanups.setdefault(owner, cleanup)


current_frame_var: contextvars.ContextVar[Frame] = contextvars.ContextVar("harn_frame")


def restore_frame(token: contextvars.Token[Frame], outer: Frame | None = None) -> None:
    """Make the frame current again that was current before *token*; *outer* if there was none."""
    try:
        current_frame_var.reset(token)
    except ValueError:
        # Left in another context than it was entered in, as a test fixture may be.
        before = outer if token.old_value is contextvars.Token.MISSING else token.old_value
        if before is not None:
            current_frame_var.set(before)
