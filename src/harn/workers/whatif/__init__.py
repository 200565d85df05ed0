"""What-if: replay a queue's log by another policy, or with more consumers, in virtual time.

history.py       the log of a queue as columns: its jobs, and the steps of their lives
history_builder.py builds a history of records; read_log.py, reads them from the log
queue_tables.py  a queue's shares and jobs in memory
scheduler_answers.py the real scheduler, asked for its picks from them
key_share.py     one key's row in them; open_shares.py, the shares that have a turn
tree_rows.py     the nodes of a queue whose keys are paths
walk.py          follows the log step by step, and asks the scheduler for its picks again
ledger.py        how long each key's jobs waited, and its share of the picks
simulation.py    serves the jobs again in virtual time; fleet.py, its consumers
report.py        the numbers of both sides
goal.py          a goal for the waits, read from text
search.py        the smallest change that reaches a goal
plot.py          the waits as an SVG; shown_waits.py, how a wait is written
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from harn.front_door import front_door

if TYPE_CHECKING:
    from harn.workers.whatif.goal import Goal, read_goal
    from harn.workers.whatif.history import QueueHistory
    from harn.workers.whatif.plot import plot
    from harn.workers.whatif.read_log import read_history
    from harn.workers.whatif.report import (
        KeyReport,
        Recorded,
        Side,
        check_picks,
        examine,
        simulate_policy,
    )
    from harn.workers.whatif.search import PolicyChange, SearchResult, search, tries_for
    from harn.workers.whatif.shown_waits import shown_wait
else:
    front_door(
        __name__,
        {
            "goal": "Goal read_goal",
            "history": "QueueHistory",
            "plot": "plot",
            "read_log": "read_history",
            "report": "KeyReport Recorded Side check_picks examine simulate_policy",
            "search": "PolicyChange SearchResult search tries_for",
            "shown_waits": "shown_wait",
        },
    )

__all__ = [
    "Goal",
    "KeyReport",
    "PolicyChange",
    "QueueHistory",
    "Recorded",
    "SearchResult",
    "Side",
    "check_picks",
    "examine",
    "plot",
    "read_goal",
    "read_history",
    "search",
    "shown_wait",
    "simulate_policy",
    "tries_for",
]
