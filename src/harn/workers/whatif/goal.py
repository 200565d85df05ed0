"""A goal such as `p95(tenant=quiet) < 30s`: read from text, and measured on a report."""

from __future__ import annotations

import re

import msgspec

from harn.duration import to_ms
from harn.errors import InvalidOption, did_you_mean
from harn.workers.scheduler_policy import SchedulerPolicy
from harn.workers.whatif.report import Side

MEASURES = ("p50", "p95", "p99", "max")
FORM = (
    'a measure, a key and a limit, such as "p95(tenant=quiet) < 30s"; the measures are '
    f"{', '.join(MEASURES)}, and without a key it holds for every key"
)
_GOAL = re.compile(r"\s*(\w+)\s*(?:\(\s*([\w-]+)\s*=\s*(.+?)\s*\))?\s*(<=?)\s*(\S+)\s*")


class Goal(msgspec.Struct, frozen=True):
    """A wait that must stay below a limit: of one key, or of every key."""

    text: str
    measure: str
    key: str | None
    limit_ms: int
    may_equal: bool

    def value(self, side: Side) -> int:
        """Return the wait that counts, in milliseconds: that of its key, or the longest one."""
        reports = side.keys.values() if self.key is None else [side.keys[self.key]]
        return max((each.wait_ms[self.measure] or 0 for each in reports), default=0)

    def is_reached(self, side: Side) -> bool:
        """Tell whether *side* reaches the goal."""
        value = self.value(side)
        return value < self.limit_ms or (self.may_equal and value == self.limit_ms)


def read_goal(text: str, policy: SchedulerPolicy, recorded: Side) -> Goal:
    """Read a goal for a queue whose keys are those of *recorded*.

    >>> side = Side(SchedulerPolicy(), 1, 1, {})
    >>> read_goal("p95 < 30s", SchedulerPolicy(), side).limit_ms
    30000
    """
    found = _GOAL.fullmatch(text)
    if found is None:
        raise InvalidOption("--goal", text, FORM)
    measure, dimension, key, sign, limit = found.groups()
    measure = "max" if measure == "worst" else measure  # as the table of the command heads it
    if measure not in MEASURES:
        raise InvalidOption("--goal", text, f"{FORM}{did_you_mean(measure, MEASURES)}")
    if dimension not in (None, "key", policy.fairness_key):
        raise InvalidOption(
            "--goal", text, f"a key by its {policy.fairness_key}, as this queue shares its jobs"
        )
    if key is not None and key not in recorded.keys:
        near = did_you_mean(key, recorded.keys)
        raise InvalidOption("--goal", text, f"a {policy.fairness_key} of the log{near}")
    try:
        limit_ms = to_ms(limit, "--goal")
    except InvalidOption:
        raise InvalidOption("--goal", text, f"{FORM}; {limit!r} is no duration") from None
    return Goal(text, measure, key, limit_ms, sign == "<=")
