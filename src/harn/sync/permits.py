"""Named permits: mutex, rwlock, semaphore and gate, with timeouts and counters.

A `Permit` belongs to the innermost open `scope`, else to the task, and is released when that ends,
unless it was released before. Keys are per runtime (`named_permits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from types import TracebackType
from typing import Literal, Self, get_args, overload

from harn.context import Frame, current_frame_var
from harn.current import current_frame
from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption, did_you_mean
from harn.event_loop import task_running_on
from harn.graceful_stop import asked, raise_if_asked
from harn.option_checks import whole_number
from harn.sync.named_permits import Kind, Permits
from harn.sync.permit_queue import PermitQueue, PermitWaiter
from harn.sync.wait_queue import GONE, GRANTED
from harn.tasks import works_for

Mode = Literal["read", "write"]

MOST_READERS = 1 << 40
"""A read-write lock's permits: a reader takes one, a writer all of them."""

_frame_here = current_frame_var.get  # saves an attribute lookup for each acquire


class Permit(PermitWaiter):
    """Permits held; `release()`, `with`, `async with` and the end of the scope release them.

    >>> import harn
    >>> async def main() -> tuple[int, bool, bool]:
    ...     permit = await harn.sync_semaphore_acquire("connections", 4, 2)
    ...     return permit.permits, permit.release(), permit.released
    >>> harn.run(main)
    (2, True, True)
    """

    # The attributes are set where it is made: the call of an `__init__` would cost more.
    _frame: Frame
    _timeout: float | None = None

    def __dir__(self) -> Iterable[str]:
        # The rest, such as what it has of a waiter, is for the queue that granted it.
        public = ("key", "kind", "permits", "release", "released")
        return [*public, *(name for name in super().__dir__() if name.startswith("_"))]

    @property
    def kind(self) -> str:
        """`"mutex"`, `"rwlock"`, `"semaphore"` or `"gate"`."""
        return self.on.kind

    @property
    def key(self) -> str:
        """The key it was acquired under."""
        return str(self.on.key)

    @property
    def permits(self) -> int:
        """How many it holds: for a read-write lock 1 to read, all of them to write."""
        return self.want

    @property
    def released(self) -> bool:
        """Whether it has been released."""
        return self.state != GRANTED

    def release(self) -> bool:
        """Release it to the next waiter; true the first time, false after that.

        May be called by any task or thread.
        """
        since = self.since
        try:
            del self.since  # atomic: of two threads that release at once, one succeeds
        except AttributeError:
            return False
        self.state = GONE
        try:
            del self._frame.cleanups[self]  # type: ignore[union-attr]
        except (KeyError, TypeError):
            pass  # disowned, or its scope has ended
        queue = self.on
        monotonic = queue.monotonic  # calling it through the slot costs twice as much
        now = monotonic()
        if get_ident() != queue.thread:
            queue.release_from_thread(self, now - since)
            return True
        queue.held_seconds += now - since
        if queue.capacity != 1:
            queue.release(self, now)
        elif queue.waiters:
            queue.pass_on(now)
        else:
            # What `pass_on` does then. Measured: with the call, an uncontended acquire and release
            # takes 4 % longer.
            queue.free = 1
            queue.out = 0
            queue.holder = None
        return True

    def _owned(self) -> Self:
        """Let the scope or task that acquired it release it when that ends."""
        frame = self._frame
        if frame.cleanups is None:
            frame.cleanups = {}
        frame.cleanups[self] = self
        return self

    def _raise_if(self, required: bool) -> None:
        """Raise `AcquireTimeout` if it is *required*: its time is up."""
        if required:
            assert self._timeout is not None
            raise self.on.timed_out(self._timeout)

    def disowned(self) -> None:
        """Record no holder: the task that acquired it may end before the release."""
        if get_ident() == self.on.thread:
            self.on.forget_holder(self)
        else:
            self.on.loop.call_soon_threadsafe(self.on.forget_holder, self)

    def __call__(self) -> bool:
        """Release it; the scope or task that owns it calls this when it ends."""
        return self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self.released else "held"
        return f"<Permit {self.kind} {self.key!r} {state}>"


def _request(
    kind: Kind, key: str, capacity: int, want: int, timeout: Duration | None, required: bool
) -> Permit:
    """Return *want* permits of the queue under *key*: granted if they are free, else to wait for.

    The callers wait themselves: a coroutine between them and the wait would cost more than this.
    """
    frame = _frame_here(None) or current_frame()
    task = frame.task
    runtime = task.runtime
    try:
        queue = runtime._services[Permits].named[kind][key]  # saves two calls
    except (KeyError, TypeError):
        queue = runtime.service(Permits).open(kind, key, capacity)
    holder = task_running_on(queue.loop)
    if holder is None or get_ident() != runtime._thread_id:
        runtime.check_here()
    if queue.capacity != capacity:
        raise _other_capacity(queue, capacity)
    if required is not False and required is not True:
        raise InvalidOption("required", required, "True or False")
    if asked:
        raise_if_asked()
    permit = Permit()
    permit.on = queue
    permit.want = want
    permit._frame = frame
    permit.holder = holder if task.thread is None else works_for(holder)
    monotonic = queue.monotonic  # calling it through the slot costs twice as much
    permit.since = monotonic()
    if timeout is not None:
        permit._timeout = to_seconds(timeout, "timeout")
    queue.enter(permit)
    return permit


def _other_capacity(queue: PermitQueue, capacity: int) -> InvalidOption:
    option = "limit" if queue.kind == "gate" else "capacity"
    known = f"{queue.capacity}, which {queue.kind} {queue.key!r} was opened with"
    return InvalidOption(option, capacity, known)


@overload
async def sync_mutex_acquire(
    key: str, timeout: None = None, *, required: bool = False
) -> Permit: ...
@overload
async def sync_mutex_acquire(key: str, timeout: Duration, *, required: Literal[True]) -> Permit: ...
@overload
async def sync_mutex_acquire(
    key: str, timeout: Duration | None = None, *, required: bool = False
) -> Permit | None: ...
async def sync_mutex_acquire(
    key: str, timeout: Duration | None = None, *, required: bool = False
) -> Permit | None:
    """Wait for the one permit under *key*; None if *timeout* passes first (0: do not wait).

    With *required* a timeout that passes is `AcquireTimeout`, so that the result can be used in
    `async with`. Raises `MutexReentered` if this task holds it already and there is no timeout.
    Cancelling leaves the queue; nothing is held.

    >>> import asyncio
    >>> async def main() -> str:
    ...     async with await sync_mutex_acquire("repo:index", timeout="500ms", required=True):
    ...         return "alone"
    >>> asyncio.run(main())
    'alone'
    """
    if asked:
        raise_if_asked()
    frame = _frame_here(None) or current_frame()
    task = frame.task
    runtime = task.runtime
    try:
        queue = runtime._services[Permits].mutexes[key]  # saves two calls
    except (KeyError, TypeError):
        queue = runtime.service(Permits).open("mutex", key, 1)
    holder = task_running_on(queue.loop)
    if holder is None or get_ident() != runtime._thread_id:
        runtime.check_here()
    if timeout is not None or queue.released_by_threads:
        permit = _request("mutex", key, 1, 1, timeout, required)
        if permit.state == GRANTED or await permit.wait_in_queue(task, permit._timeout):
            return permit._owned()
        permit._raise_if(required)
        return None
    permit = Permit()
    permit.on = queue
    permit._frame = frame
    if task.thread is not None:
        holder = works_for(holder)
    permit.holder = holder
    monotonic = queue.monotonic  # calling it through the slot costs twice as much
    permit.since = monotonic()
    if queue.free:
        # Does what `PermitQueue.enter` does for the only permit. Measured: through `_request`, an
        # uncontended acquire and release takes twice as long.
        queue.free = 0
        queue.out = 1
        queue.acquisitions += 1
        queue.holder = holder
        permit.state = GRANTED
    else:
        await permit.wait_in_queue(task)
    if frame.cleanups is None:
        frame.cleanups = {}
    frame.cleanups[permit] = permit
    return permit


@overload
async def sync_rwlock_acquire(
    key: str, mode: Mode, timeout: None = None, *, required: bool = False
) -> Permit: ...
@overload
async def sync_rwlock_acquire(
    key: str, mode: Mode, timeout: Duration, *, required: Literal[True]
) -> Permit: ...
@overload
async def sync_rwlock_acquire(
    key: str, mode: Mode, timeout: Duration | None = None, *, required: bool = False
) -> Permit | None: ...
async def sync_rwlock_acquire(
    key: str, mode: Mode, timeout: Duration | None = None, *, required: bool = False
) -> Permit | None:
    """Wait for a shared read lock or an exclusive write lock; None if *timeout* passes first.

    With *required* a timeout that passes is `AcquireTimeout`. First come, first served: a waiting
    writer blocks the readers that come after it. Raises `MutexReentered` if this task would wait
    for its own lock and there is no timeout. Cancelling leaves the queue; nothing is held.

    >>> import asyncio
    >>> async def main() -> Permit | None:
    ...     with await sync_rwlock_acquire("catalog", "read"):
    ...         return await sync_rwlock_acquire("catalog", "write", timeout=0)
    >>> asyncio.run(main()) is None
    True
    """
    if mode not in get_args(Mode):
        near = did_you_mean(mode, get_args(Mode))
        raise InvalidOption("mode", mode, f'"read" or "write"{near}')
    want = MOST_READERS if mode == "write" else 1
    permit = _request("rwlock", key, MOST_READERS, want, timeout, required)
    if permit.state == GRANTED or await permit.wait_in_queue(permit._frame.task, permit._timeout):
        return permit._owned()
    permit._raise_if(required)
    return None


@overload
async def sync_semaphore_acquire(
    key: str, capacity: int, permits: int = 1, timeout: None = None, *, required: bool = False
) -> Permit: ...
@overload
async def sync_semaphore_acquire(
    key: str,
    capacity: int,
    permits: int = 1,
    timeout: Duration | None = None,
    *,
    required: Literal[True],
) -> Permit: ...
@overload
async def sync_semaphore_acquire(
    key: str,
    capacity: int,
    permits: int = 1,
    timeout: Duration | None = None,
    *,
    required: bool = False,
) -> Permit | None: ...
async def sync_semaphore_acquire(
    key: str,
    capacity: int,
    permits: int = 1,
    timeout: Duration | None = None,
    *,
    required: bool = False,
) -> Permit | None:
    """Wait for *permits* of the *capacity* under *key*; None if *timeout* passes first.

    With *required* a timeout that passes is `AcquireTimeout`. No caller overtakes the first waiter,
    however many permits it wants. Raises `InvalidOption` if the key was opened with another
    *capacity*. Cancelling leaves the queue; nothing is held.

    >>> import asyncio
    >>> async def main() -> int:
    ...     held = await sync_semaphore_acquire("connector:notion", 4, 2, "2s", required=True)
    ...     async with held as permit:
    ...         return permit.permits
    >>> asyncio.run(main())
    2
    """
    if not (type(permits) is type(capacity) is int and 0 < permits <= capacity):
        whole_number("capacity", capacity, least=1)
        if whole_number("permits", permits, least=1) > capacity:
            raise InvalidOption("permits", permits, f"at most the capacity, {capacity}")
    permit = _request("semaphore", key, capacity, permits, timeout, required)
    if permit.state == GRANTED or await permit.wait_in_queue(permit._frame.task, permit._timeout):
        return permit._owned()
    permit._raise_if(required)
    return None


@overload
async def sync_gate_acquire(
    key: str, limit: int, timeout: None = None, *, required: bool = False
) -> Permit: ...
@overload
async def sync_gate_acquire(
    key: str, limit: int, timeout: Duration, *, required: Literal[True]
) -> Permit: ...
@overload
async def sync_gate_acquire(
    key: str, limit: int, timeout: Duration | None = None, *, required: bool = False
) -> Permit | None: ...
async def sync_gate_acquire(
    key: str, limit: int, timeout: Duration | None = None, *, required: bool = False
) -> Permit | None:
    """Wait for one of *limit* permits under *key*; None if *timeout* passes first.

    With *required* a timeout that passes is `AcquireTimeout`. Cancelling leaves the queue;
    nothing is held.

    >>> import asyncio
    >>> async def main() -> str:
    ...     async with await sync_gate_acquire("workflow-runner", 8, "5s", required=True):
    ...         return "admitted"
    >>> asyncio.run(main())
    'admitted'
    """
    whole_number("limit", limit, least=1)
    permit = _request("gate", key, limit, 1, timeout, required)
    if permit.state == GRANTED or await permit.wait_in_queue(permit._frame.task, permit._timeout):
        return permit._owned()
    permit._raise_if(required)
    return None


def sync_release(permit: Permit) -> bool:
    """Release *permit*; true the first time, false after that.

    >>> import harn
    >>> async def main() -> tuple[bool, bool]:
    ...     permit = await harn.sync_mutex_acquire("repo")
    ...     return harn.sync_release(permit), harn.sync_release(permit)
    >>> harn.run(main)
    (True, False)
    """
    if not isinstance(permit, Permit):
        raise InvalidOption("permit", permit, "a permit, as sync_*_acquire returns it")
    return permit.release()
