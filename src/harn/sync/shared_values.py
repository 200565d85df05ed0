"""Shared cells and maps: versioned values that several tasks and threads change.

`set` always replaces the value. A compare-and-swap (`cas`) with a snapshot replaces it only if
there was no write since the snapshot was read. Each cell, and each key of a map, has its own
version: it increases by one with every write and is never used again.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast, overload

from harn.current import current_frame
from harn.errors import InvalidOption
from harn.records import Record
from harn.sync.sharing_scopes import Namespaces, Scope, resolve_scope

T = TypeVar("T")
D = TypeVar("D")

MOST_DELETED = 10_000
"""The most deleted keys of a map whose versions are kept separately."""


@dataclass(frozen=True, slots=True)
class SharedSnapshot(Generic[T]):
    """A *value* and the *version* it had when it was read.

    >>> import harn
    >>> async def main() -> tuple[bool, int]:
    ...     cell = harn.shared_cell("tokens", initial=0)
    ...     seen = cell.snapshot()
    ...     cell.set(5)
    ...     return cell.cas(seen, 1), seen.version
    >>> harn.run(main)
    (False, 0)
    """

    value: T
    version: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the type's name."""
        return {"_type": "shared_snapshot", "value": self.value, "version": self.version}


@dataclass(frozen=True, slots=True)
class SharedMetrics(Record):
    """The counters of a cell or map. *stale_read_count* counts `cas` with an old snapshot.

    >>> import harn
    >>> async def main() -> int:
    ...     cell = harn.shared_cell("tokens", initial=0)
    ...     cell.set(1)
    ...     return cell.metrics().write_count
    >>> harn.run(main)
    1
    """

    version: int
    read_count: int
    write_count: int
    cas_success_count: int
    cas_failure_count: int
    stale_read_count: int


class _Counted:
    """The identity and the counters of shared state, and the lock that guards both.

    Each object has its own lock, and it is re-entrant: comparing two values may run user code.
    """

    __slots__ = ("_failed", "_lock", "_reads", "_stale", "_swapped", "_writes", "key", "scope")

    def __init__(self, where: tuple[str, str], key: str) -> None:
        self.key: str = key
        self.scope: str = ":".join(where)
        self._lock = threading.RLock()
        self._reads = self._writes = self._swapped = self._failed = self._stale = 0

    def metrics(self) -> SharedMetrics:
        """Return the counters."""
        with self._lock:
            return SharedMetrics(
                version=self._writes,
                read_count=self._reads,
                write_count=self._writes,
                cas_success_count=self._swapped,
                cas_failure_count=self._failed,
                stale_read_count=self._stale,
            )

    def _may_swap(self, expected: object, value: object, version: int) -> bool:
        if isinstance(expected, SharedSnapshot):
            if expected.version != version:
                self._stale += 1
                return False
            expected = expected.value
        return expected is value or bool(expected == value)

    def _count_swap(self, swapped: bool) -> bool:
        if swapped:
            self._swapped += 1
        else:
            self._failed += 1
        return swapped


class SharedCell(_Counted, Generic[T]):
    """One shared value, made by `shared_cell()`; every method may be called from any thread.

    >>> import harn
    >>> async def main() -> int:
    ...     budget = harn.shared_cell("tokens", initial=100)
    ...     budget.set(budget.get() - 30)
    ...     return budget.get()
    >>> harn.run(main)
    70
    """

    __slots__ = ("_value",)

    def __init__(self, where: tuple[str, str], key: str, initial: T) -> None:
        super().__init__(where, key)
        self._value = initial

    def get(self) -> T:
        """Return the value."""
        with self._lock:
            self._reads += 1
            return self._value

    def set(self, value: T) -> T:
        """Replace the value; returns the previous one."""
        with self._lock:
            previous, self._value = self._value, value
            self._writes += 1
            return previous

    def snapshot(self) -> SharedSnapshot[T]:
        """Return the value with its version, for `cas`."""
        with self._lock:
            self._reads += 1
            return SharedSnapshot(self._value, self._writes)

    def cas(self, expected: SharedSnapshot[T] | T, value: T) -> bool:
        """Replace the value if it is still *expected*; tells whether it did.

        A snapshot must have the current version and an equal value. A plain value must only be
        equal: a change and a change back are not noticed.
        """
        with self._lock:
            swapped = self._may_swap(expected, self._value, self._writes)
            if swapped:
                self._value = value
                self._writes += 1
            return self._count_swap(swapped)

    def __repr__(self) -> str:
        return f"<SharedCell {self.scope} {self.key!r} {self._value!r}>"


class SharedMap(_Counted, Generic[T]):
    """A shared map, made by `shared_map()`; every method may be called from any thread.

    >>> import harn
    >>> async def main() -> dict[str, int]:
    ...     notes = harn.shared_map("notes", initial={"a": 1})
    ...     notes.set("b", 2)
    ...     return notes.entries()
    >>> harn.run(main)
    {'a': 1, 'b': 2}
    """

    __slots__ = ("_deleted", "_entries", "_floor")

    def __init__(self, where: tuple[str, str], key: str, initial: Mapping[Any, T] | None) -> None:
        super().__init__(where, key)
        self._entries = {name: (value, 0) for name, value in (initial or {}).items()}
        self._deleted: dict[Hashable, int] = {}
        self._floor = 0  # the version of an absent key that is not in `_deleted`

    @overload
    def get(self, key: Hashable) -> T | None: ...
    @overload
    def get(self, key: Hashable, default: D) -> T | D: ...
    def get(self, key: Hashable, default: Any = None) -> Any:
        """Return the value under *key*, or *default*."""
        with self._lock:
            self._reads += 1
            found = self._entries.get(_hashable(key))
            return default if found is None else found[0]

    def set(self, key: Hashable, value: T) -> T | None:
        """Put *value* under *key*; returns the previous value, or None."""
        with self._lock:
            return self._write(_hashable(key), value)

    def delete(self, key: Hashable) -> T | None:
        """Remove *key*; returns the previous value. Removing an absent key is not a write."""
        with self._lock:
            return self._remove(_hashable(key))

    def snapshot(self, key: Hashable) -> SharedSnapshot[T | None]:
        """Return the value under *key* with its version; the value is None for an absent key."""
        with self._lock:
            self._reads += 1
            return SharedSnapshot(*self._look(_hashable(key)))

    def cas(self, key: Hashable, expected: SharedSnapshot[Any] | T | None, value: T | None) -> bool:
        """Replace the value under *key* if it is still *expected*; tells whether it did.

        Snapshots are per key: writes to other keys do not make them stale. An *expected* None
        matches an absent key; a *value* of None deletes it.
        """
        with self._lock:
            current, version = self._look(_hashable(key))
            swapped = self._may_swap(expected, current, version)
            if swapped and value is None:
                self._remove(key)
            elif swapped:
                self._write(key, cast(T, value))
            return self._count_swap(swapped)

    def entries(self) -> dict[Any, T]:
        """Return a copy of the whole map."""
        with self._lock:
            self._reads += 1
            return {key: value for key, (value, _) in self._entries.items()}

    def __repr__(self) -> str:
        return f"<SharedMap {self.scope} {self.key!r} {len(self._entries)} entries>"

    def _look(self, key: Hashable) -> tuple[T | None, int]:
        found = self._entries.get(key)
        return (None, self._deleted.get(key, self._floor)) if found is None else found

    def _write(self, key: Hashable, value: T) -> T | None:
        previous, version = self._look(key)
        self._entries[key] = (value, version + 1)
        self._deleted.pop(key, None)
        self._writes += 1
        return previous

    def _remove(self, key: Hashable) -> T | None:
        previous, version = self._look(key)
        if self._entries.pop(key, None) is not None:
            self._writes += 1
            self._remember_deleted(key, version + 1)
        return previous

    def _remember_deleted(self, key: Hashable, version: int) -> None:
        # A key that is added again must not get an old version. Beyond the limit, all absent keys
        # share the highest of the forgotten versions: a `cas` may then fail without need, but
        # never succeeds wrongly.
        self._deleted[key] = version
        if len(self._deleted) > MOST_DELETED:
            self._floor = max(self._floor, *self._deleted.values())
            self._deleted.clear()


def _hashable(key: Hashable) -> Hashable:
    try:
        hash(key)
    except TypeError:
        raise InvalidOption("key", key, "something hashable, such as a string") from None
    return key


@overload
def shared_cell(
    key: str, scope: Scope = "task_group", initial: None = None, tenant_id: str | None = None
) -> SharedCell[Any]: ...
@overload
def shared_cell(
    key: str, scope: Scope = "task_group", *, initial: T, tenant_id: str | None = None
) -> SharedCell[T]: ...
@overload
def shared_cell(
    key: str, scope: Scope, initial: T, tenant_id: str | None = None
) -> SharedCell[T]: ...
def shared_cell(
    key: str, scope: Scope = "task_group", initial: Any = None, tenant_id: str | None = None
) -> SharedCell[Any]:
    """Open the cell *key* of *scope*; *initial* applies only if it is new.

    >>> import asyncio
    >>> async def main() -> int:
    ...     budget = shared_cell("tokens", initial=0)
    ...     seen = budget.snapshot()
    ...     budget.cas(seen, seen.value + 10)
    ...     return shared_cell("tokens", initial=99).get()
    >>> asyncio.run(main())
    10
    """
    task = current_frame().task
    where = resolve_scope(task, scope, tenant_id)
    spaces = task.runtime.service(Namespaces)
    return spaces.open("cell", where, key, lambda: SharedCell(where, key, initial))


@overload
def shared_map(
    key: str, scope: Scope = "task_group", initial: None = None, tenant_id: str | None = None
) -> SharedMap[Any]: ...
@overload
def shared_map(
    key: str,
    scope: Scope = "task_group",
    *,
    initial: Mapping[Any, T],
    tenant_id: str | None = None,
) -> SharedMap[T]: ...
@overload
def shared_map(
    key: str, scope: Scope, initial: Mapping[Any, T], tenant_id: str | None = None
) -> SharedMap[T]: ...
def shared_map(
    key: str,
    scope: Scope = "task_group",
    initial: Mapping[Any, Any] | None = None,
    tenant_id: str | None = None,
) -> SharedMap[Any]:
    """Open the map *key* of *scope*; *initial* applies only if it is new.

    >>> import asyncio
    >>> async def main() -> dict[str, str]:
    ...     notes = shared_map("scratchpad", scope="agent_session")
    ...     notes.set("hypothesis", "retry with smaller batch")
    ...     return notes.entries()
    >>> asyncio.run(main())
    {'hypothesis': 'retry with smaller batch'}
    """
    if initial is not None and not isinstance(initial, Mapping):
        raise InvalidOption("initial", initial, "a mapping, or None")
    task = current_frame().task
    where = resolve_scope(task, scope, tenant_id)
    spaces = task.runtime.service(Namespaces)
    return spaces.open("map", where, key, lambda: SharedMap(where, key, initial))
