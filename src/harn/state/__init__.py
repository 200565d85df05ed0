"""State that lasts: stored values, and the steps of durable work.

stored_values.py   store_*: versioned values by key, the same for all processes of a store
agent_state.py     agent_state_*: such values of one agent session
steps.py           step: once in a job or durable pool task, and remembered by later attempts
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.state.agent_state import (
        agent_state_cas,
        agent_state_delete,
        agent_state_get,
        agent_state_list,
        agent_state_set,
        agent_state_snapshot,
    )
    from harn.state.steps import step, take_number
    from harn.state.stored_values import (
        store_cas,
        store_delete,
        store_get,
        store_list,
        store_set,
        store_snapshot,
    )
else:
    front_door(
        __name__,
        {
            "agent_state": """
                agent_state_cas agent_state_delete agent_state_get agent_state_list agent_state_set
                agent_state_snapshot
            """,
            "steps": "step take_number",
            "stored_values": "store_cas store_delete store_get store_list store_set store_snapshot",
        },
    )

__all__ = [
    "agent_state_cas",
    "agent_state_delete",
    "agent_state_get",
    "agent_state_list",
    "agent_state_set",
    "agent_state_snapshot",
    "step",
    "store_cas",
    "store_delete",
    "store_get",
    "store_list",
    "store_set",
    "store_snapshot",
    "take_number",
]
