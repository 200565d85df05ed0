"""Stored values: `store_*`, versioned values by key that outlive the process.

A value is JSON. Each write of a key has the next version, a delete too; a key that was never
written has version 0. Writes of one process that meet share a transaction.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from harn.batcher import Batcher, Entry, Landing
from harn.current import current_runtime
from harn.errors import InvalidOption, StorageCorrupt
from harn.naming import check_data, has_controls
from harn.runtime import Runtime
from harn.storage import MAX_VALUE, Store, decode, encode
from harn.storage.state import (
    ChangeResult,
    ChangeResults,
    StoredValue,
    ValueChange,
    ValuePlace,
    change_values,
    list_keys,
    read_value,
)
from harn.sync import SharedSnapshot
from harn.topics import STORED_VALUES

MAX_KEY = 512


class StoredValues:
    """The values of a runtime's store, in both topics."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = runtime.service(Store)
        self._batchers: dict[str, Batcher[ValueChange]] = {}

    async def get(self, place: ValuePlace, default: Any) -> Any:
        """Return the value at *place*, or *default*. Cancelling leaves nothing behind."""
        found = await self._read(place)
        return default if found.value is None else decode(found.value)

    async def snapshot(self, place: ValuePlace) -> SharedSnapshot[Any]:
        """Return the value at *place* with its version. Cancelling leaves nothing behind."""
        found = await self._read(place)
        value = None if found.value is None else decode(found.value)
        return SharedSnapshot(value, found.version)

    async def keys(self, topic: str, space: str, prefix: str) -> list[str]:
        """List the keys of a namespace or session that begin with *prefix*.

        Cancelling leaves nothing behind.
        """
        return await self._store.run(partial(list_keys, topic, space, prefix), write=False)

    async def change(self, change: ValueChange) -> ChangeResult:
        """Carry *change* out; it is durable when this returns.

        Cancelling before the transaction began means it did not happen; afterwards it may have.
        """
        self._runtime.check_here()
        batcher = self._batchers.get(change.place.topic)
        if batcher is None:
            batcher = self._batcher(change.place.topic)
        result: ChangeResult = await batcher.ask(change)
        if result.error is not None:
            raise StorageCorrupt(result.error)
        return result

    async def _read(self, place: ValuePlace) -> StoredValue:
        found = await self._store.run(partial(read_value, place), write=False)
        if found.is_damaged:
            raise StorageCorrupt(place.damage)
        return found

    def _batcher(self, topic: str) -> Batcher[ValueChange]:
        start = partial(self._start, topic)
        batcher = self._batchers[topic] = Batcher(self._runtime.loop, start, _results, weigh=_weigh)
        return batcher

    def _start(self, topic: str, batch: list[Entry[ValueChange]], landing: Landing) -> bool:
        if not batch:  # every caller was cancelled
            return False
        changes = [entry.item for entry in batch]
        self._store.submit(partial(change_values, topic, changes), into=landing)
        return True


def _results(batch: list[Entry[ValueChange]], changed: ChangeResults) -> list[ChangeResult]:
    return changed.results


def _weigh(change: ValueChange) -> tuple[int, int]:
    return 1, len(change.value)


def stored_values(call: str) -> StoredValues:
    """Return the values of the current runtime, for the public *call*."""
    runtime = current_runtime()
    runtime.warn_if_nothing_is_kept(call)
    return runtime.service(StoredValues)


def check_key(key: object) -> str:
    """Return *key* if a value can be stored under it."""
    return check_data("key", key, MAX_KEY)


def check_prefix(prefix: object) -> str:
    """Return *prefix* if keys may begin with it."""
    if not isinstance(prefix, str) or len(prefix) > MAX_KEY or has_controls(prefix):
        accepted = f"text of at most {MAX_KEY} characters without control characters"
        raise InvalidOption("prefix", prefix, accepted)
    return prefix


def setting(place: ValuePlace, value: Any) -> ValueChange:
    """Return the change that sets *value*."""
    return ValueChange(place, "set", encode("value", value, MAX_VALUE))


def swapping(place: ValuePlace, expected: Any, value: Any) -> ValueChange:
    """Return the change that replaces *expected*, a value or a snapshot, by *value*."""
    new = encode("value", value, MAX_VALUE)
    if isinstance(expected, SharedSnapshot):
        return ValueChange(place, "cas", new, version=expected.version)
    return ValueChange(place, "cas", new, expected=encode("expected", expected, MAX_VALUE))


def value_before(result: ChangeResult) -> Any:
    """Return the value that a change has replaced; None if there was none."""
    return None if result.before.value is None else decode(result.before.value)


def _place(key: str, namespace: str) -> ValuePlace:
    return ValuePlace(STORED_VALUES, check_data("namespace", namespace, MAX_KEY), check_key(key))


async def store_get(key: str, default: Any = None, *, namespace: str = "default") -> Any:
    """Return the value stored under *key*, or *default* if there is none.

    Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> int:
    ...     await harn.store_set("reviews/1984", {"score": 7})
    ...     return (await harn.store_get("reviews/1984"))["score"]
    >>> harn.run(main)
    7
    """
    return await stored_values("store_get()").get(_place(key, namespace), default)


async def store_set(key: str, value: Any, *, namespace: str = "default") -> Any:
    """Store *value*, which is JSON, under *key*; return the previous value, or None.

    It is durable when this returns. Cancelling may be too late to prevent it.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.store_set("mode", "slow")
    ...     return await harn.store_set("mode", "fast")
    >>> harn.run(main)
    'slow'
    """
    change = setting(_place(key, namespace), value)
    return value_before(await stored_values("store_set()").change(change))


async def store_delete(key: str, *, namespace: str = "default") -> Any:
    """Delete the value under *key*; return it, or None. Deleting an absent key is no write.

    Cancelling may be too late to prevent it.

    >>> import harn
    >>> async def main() -> list:
    ...     await harn.store_set("draft", "text")
    ...     return [await harn.store_delete("draft"), await harn.store_get("draft", "gone")]
    >>> harn.run(main)
    ['text', 'gone']
    """
    change = ValueChange(_place(key, namespace), "delete")
    return value_before(await stored_values("store_delete()").change(change))


async def store_list(prefix: str = "", *, namespace: str = "default") -> list[str]:
    """List the keys that begin with *prefix*, in code-point order; no value is read.

    Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     for key in ("reviews/2", "reviews/1", "users/ada"):
    ...         await harn.store_set(key, True)
    ...     return await harn.store_list("reviews/")
    >>> harn.run(main)
    ['reviews/1', 'reviews/2']
    """
    space = check_data("namespace", namespace, MAX_KEY)
    values = stored_values("store_list()")
    return await values.keys(STORED_VALUES, space, check_prefix(prefix))


async def store_snapshot(key: str, *, namespace: str = "default") -> SharedSnapshot[Any]:
    """Return the value under *key* with its version, for `store_cas`.

    The value is None for an absent key, and the version 0 if it was never written. Cancelling
    leaves nothing behind.

    >>> import harn
    >>> async def main() -> harn.SharedSnapshot:
    ...     await harn.store_set("mode", "slow")
    ...     return await harn.store_snapshot("mode")
    >>> harn.run(main)
    SharedSnapshot(value='slow', version=1)
    """
    return await stored_values("store_snapshot()").snapshot(_place(key, namespace))


async def store_cas(
    key: str, expected: SharedSnapshot[Any] | Any, value: Any, *, namespace: str = "default"
) -> bool:
    """Store *value* under *key* if what is there is *expected*; tell whether it was.

    A snapshot must have the current version: no process has written the key since. A plain value
    must be equal; None matches an absent key, too. Cancelling may be too late to prevent it.

    >>> import harn
    >>> async def count() -> None:
    ...     while True:
    ...         seen = await harn.store_snapshot("count")
    ...         if await harn.store_cas("count", seen, (seen.value or 0) + 1):
    ...             return
    >>> async def main() -> int:
    ...     await harn.parallel_each(range(10), lambda _: count())
    ...     return await harn.store_get("count")
    >>> harn.run(main)
    10
    """
    change = swapping(_place(key, namespace), expected, value)
    return (await stored_values("store_cas()").change(change)).is_done
