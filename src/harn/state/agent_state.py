"""The state of an agent session: `agent_state_*`, stored values that belong to the session."""

from __future__ import annotations

from typing import Any

from harn.current import calling_frame
from harn.errors import InvalidOption
from harn.naming import check_data
from harn.state.stored_values import (
    MAX_KEY,
    check_key,
    check_prefix,
    setting,
    stored_values,
    swapping,
    value_before,
)
from harn.storage.state import ValueChange, ValuePlace
from harn.sync import SharedSnapshot
from harn.topics import AGENT_STATE


def _session(session_id: str | None) -> str:
    found = session_id
    if found is None:
        found = calling_frame().task.ambient.agent_session_id
        if found is None:
            raise InvalidOption(
                "session_id",
                None,
                "an agent session: give session_id, or open the Runtime with agent_session_id",
            )
    return check_data("session_id", found, MAX_KEY)


def _place(key: str, session_id: str | None) -> ValuePlace:
    return ValuePlace(AGENT_STATE, _session(session_id), check_key(key))


async def agent_state_get(key: str, default: Any = None, *, session_id: str | None = None) -> Any:
    """Return the value under *key* of an agent session, or *default* if there is none.

    Without *session_id* it is the session of the calling task. Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.agent_state_set("plan", "read the tests first")
    ...     return await harn.agent_state_get("plan")
    >>> harn.run(main, agent_session_id="review-1984")
    'read the tests first'
    """
    return await stored_values("agent_state_get()").get(_place(key, session_id), default)


async def agent_state_set(key: str, value: Any, *, session_id: str | None = None) -> Any:
    """Store *value*, which is JSON, under *key* of an agent session; return the previous value.

    It is durable when this returns. Cancelling may be too late to prevent it.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.agent_state_set("plan", "read")
    ...     return await harn.agent_state_set("plan", "write")
    >>> harn.run(main, agent_session_id="review-1984")
    'read'
    """
    change = setting(_place(key, session_id), value)
    return value_before(await stored_values("agent_state_set()").change(change))


async def agent_state_delete(key: str, *, session_id: str | None = None) -> Any:
    """Delete the value under *key* of an agent session; return it, or None.

    Cancelling may be too late to prevent it.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.agent_state_set("plan", "read")
    ...     await harn.agent_state_delete("plan")
    ...     return await harn.agent_state_get("plan", "none")
    >>> harn.run(main, agent_session_id="review-1984")
    'none'
    """
    change = ValueChange(_place(key, session_id), "delete")
    return value_before(await stored_values("agent_state_delete()").change(change))


async def agent_state_list(prefix: str = "", *, session_id: str | None = None) -> list[str]:
    """List the keys of an agent session that begin with *prefix*, in code-point order.

    Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> list[str]:
    ...     await harn.agent_state_set("plan", "read")
    ...     await harn.agent_state_set("notes", [])
    ...     return await harn.agent_state_list()
    >>> harn.run(main, agent_session_id="review-1984")
    ['notes', 'plan']
    """
    values = stored_values("agent_state_list()")
    return await values.keys(AGENT_STATE, _session(session_id), check_prefix(prefix))


async def agent_state_snapshot(key: str, *, session_id: str | None = None) -> SharedSnapshot[Any]:
    """Return the value under *key* of an agent session with its version.

    Cancelling leaves nothing behind.

    >>> import harn
    >>> async def main() -> str:
    ...     await harn.agent_state_set("plan", "read")
    ...     return (await harn.agent_state_snapshot("plan")).value
    >>> harn.run(main, agent_session_id="review-1984")
    'read'
    """
    return await stored_values("agent_state_snapshot()").snapshot(_place(key, session_id))


async def agent_state_cas(
    key: str, expected: SharedSnapshot[Any] | Any, value: Any, *, session_id: str | None = None
) -> bool:
    """Store *value* under *key* of an agent session if what is there is *expected*.

    *expected* is a snapshot or a value, as in `store_cas`. Cancelling may be too late to prevent
    it.

    >>> import harn
    >>> async def main() -> bool:
    ...     await harn.agent_state_set("plan", "read")
    ...     return await harn.agent_state_cas("plan", "read", "write")
    >>> harn.run(main, agent_session_id="review-1984")
    True
    """
    change = swapping(_place(key, session_id), expected, value)
    return (await stored_values("agent_state_cas()").change(change)).is_done
