"""Stored values by key: records of the log, and a row that finds the latest one of each key.

values.py       read, list, and change values: set, delete, compare and set
state_fold.py   the rows, from the log
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.storage.state.state_fold import StateIndex
    from harn.storage.state.values import (
        ChangeResult,
        ChangeResults,
        StoredValue,
        ValueChange,
        ValuePlace,
        change_values,
        list_keys,
        read_value,
    )
else:
    front_door(
        __name__,
        {
            "state_fold": "StateIndex",
            "values": """
                ChangeResult ChangeResults StoredValue ValueChange ValuePlace change_values
                list_keys read_value
            """,
        },
    )

__all__ = [
    "ChangeResult",
    "ChangeResults",
    "StateIndex",
    "StoredValue",
    "ValueChange",
    "ValuePlace",
    "change_values",
    "list_keys",
    "read_value",
]
