"""Why a drain found nothing to do although jobs are ready."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from harn.plurals import counted
from harn.workers import JobState

LOOKED_AT = 200
"""The most ready jobs that are looked at."""
MOST_NAMED = 3


def why_none(jobs: Sequence[JobState], runs: Collection[str], manifest: str) -> str | None:
    """Return why none of the ready *jobs* was run by a drain that *runs* some triggers.

    None if one of them could have been: another consumer had it, or it is paused or capped.
    """
    functions = Counter(job.function for job in jobs if job.function is not None)
    triggers = Counter(job.trigger_id for job in jobs if job.function is None and job.trigger_id)
    if any(name in runs for name in triggers):
        return None
    plain = len(jobs) - functions.total() - triggers.total()
    reasons = []
    if functions:
        names = _named(functions)
        reasons.append(f"{_jobs(functions)} of functions ({names}), which `harn worker` runs")
    if triggers:
        names = _named(triggers)
        reasons.append(f"{_jobs(triggers)} of triggers ({names}) that {manifest} does not run here")
    if plain:
        have = "has" if plain == 1 else "have"
        told = "a program drains such jobs with `harn.drain`"
        reasons.append(f"{counted(plain, 'ready job')} {have} no trigger: {told}")
    return f"nothing was drained: {'; '.join(reasons)}" if reasons else None


def _jobs(names: Counter[str]) -> str:
    number = names.total()
    return f"{counted(number, 'ready job')} {'is' if number == 1 else 'are'}"


def _named(names: Counter[str]) -> str:
    first = ", ".join(map(repr, sorted(names)[:MOST_NAMED]))
    return f"{first} and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else first
