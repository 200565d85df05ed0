"""How every comparison here is run, so that a sceptic can repeat it.

A *subject* is one file in this package with `SUBJECT`, a docstring that says what is measured and
why the comparison is fair, and `def contests() -> Iterable[Contest]`. A `Contest` names one thing
to measure (`"submit and complete a no-op"`), its unit, and its contestants: functions that do it
once and return the cost of one operation in microseconds (`Contestant.run(n)` decides how to time;
`timed` and `timed_async` help). Contestants of a contest take turns (A B C A B C ...), the first
round is warm-up and thrown away, and the result is the median of at least five rounds with its
spread. A `Goal` compares two contestants of one contest, or one contestant at two sizes, as a
ratio; it is met or not, by how much.

    python -m bench                 every subject
    python -m bench pools           one of them
    python -m bench pools --quick   three short rounds, to see that it runs

Results go to the terminal and to `bench/results/latest.json`.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import pkgutil
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Contestant:
    """Someone who can do it: *run* does it and returns microseconds per operation."""

    name: str
    run: Callable[[], float]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Contest:
    """One thing to measure, and who takes part. Smaller is better."""

    name: str
    contestants: tuple[Contestant, ...]
    unit: str = "µs/op"


@dataclass(frozen=True, slots=True)
class Goal:
    """The ratio of two medians that must be *at_most* (or *at_least*) so much."""

    name: str
    contest: str
    contestant: str
    against: str
    at_most: float | None = None
    at_least: float | None = None
    against_contest: str | None = None


@dataclass(slots=True)
class Outcome:
    """What was measured of one contestant, in the contest's unit."""

    contest: str
    contestant: str
    unit: str
    note: str
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        return (max(self.samples) - min(self.samples)) / self.median if self.median else 0.0


def timed(operation: Callable[[int], object], n: int) -> Callable[[], float]:
    """Time `operation(n)`, which does it *n* times."""

    def run() -> float:
        gc.collect()
        began = time.perf_counter()
        operation(n)
        return (time.perf_counter() - began) / n * 1e6

    return run


def timed_async(operation: Callable[[int], Awaitable[object]], n: int) -> Callable[[], float]:
    """Time `await operation(n)` on a new event loop, without the loop's own start and end."""

    async def inside() -> float:
        gc.collect()
        began = time.perf_counter()
        await operation(n)
        return (time.perf_counter() - began) / n * 1e6

    return lambda: asyncio.run(inside())


def measure(contest: Contest, rounds: int = ROUNDS) -> list[Outcome]:
    """Let the contestants take turns; the first round does not count."""
    outcomes = [
        Outcome(contest.name, each.name, contest.unit, each.note) for each in contest.contestants
    ]
    for turn in range(rounds + 1):
        for contestant, outcome in zip(contest.contestants, outcomes, strict=True):
            cost = contestant.run()
            if turn:
                outcome.samples.append(cost)
        _progress(f"{contest.name}: round {turn} of {rounds}")
    return outcomes


def judge(goal: Goal, outcomes: list[Outcome]) -> dict[str, object]:
    """Compare what was measured with *goal*."""
    medians = {(each.contest, each.contestant): each.median for each in outcomes}
    mine = medians[goal.contest, goal.contestant]
    other = medians[goal.against_contest or goal.contest, goal.against]
    ratio = mine / other
    met = (goal.at_most is None or ratio <= goal.at_most) and (
        goal.at_least is None or ratio >= goal.at_least
    )
    bound = f"<= {goal.at_most:g}x" if goal.at_most is not None else f">= {goal.at_least:g}x"
    return {"name": goal.name, "goal": bound, "measured": round(ratio, 3), "met": met}


def main(argv: list[str]) -> int:
    """Run the named subjects (all of them without a name) and print what came out."""
    quick = "--quick" in argv
    wanted = [each for each in argv if not each.startswith("-")] or subjects()
    outcomes: list[Outcome] = []
    goals: list[dict[str, object]] = []
    for name in wanted:
        subject = importlib.import_module(f"bench.{name}")
        _progress(f"== {subject.SUBJECT}\n")
        here: list[Outcome] = []
        for contest in subject.contests():
            here += measure(contest, 3 if quick else ROUNDS)
        goals += [judge(goal, here) for goal in subject.GOALS]
        outcomes += here
    _print(outcomes, goals)
    _save(outcomes, goals, wanted)
    return 0


def subjects() -> list[str]:
    """List the subjects: the modules of this package that declare one."""
    names = [module.name for module in pkgutil.iter_modules(__import__("bench").__path__)]
    return [name for name in names if name not in {"harness", "__main__"}]


def _print(outcomes: list[Outcome], goals: list[dict[str, object]]) -> None:
    contest = ""
    for each in outcomes:
        if each.contest != contest:
            contest, best = each.contest, each.median
            print(f"\n{contest} ({each.unit})")
        ratio = each.median / best if best else 0
        print(
            f"  {each.contestant:<34}{each.median:>12.2f}  {ratio:>7.2f}x"
            f"  ±{each.spread * 50:.0f}%  {each.note}"
        )
    if goals:
        print("\ngoals")
    for goal in goals:
        mark = "met    " if goal["met"] else "NOT MET"
        print(f"  {mark} {goal['name']}: {goal['measured']}x ({goal['goal']})")


def _save(outcomes: list[Outcome], goals: list[dict[str, object]], ran: Iterable[str]) -> None:
    RESULTS.mkdir(exist_ok=True)
    latest = RESULTS / "latest.json"
    known = json.loads(latest.read_text()) if latest.exists() else {}
    document = {
        "machine": {"python": platform.python_version(), "system": platform.platform()},
        "ran": sorted({*ran, *known.get("ran", [])}),
        "outcomes": _merged(
            known.get("outcomes", []),
            [{**asdict(each), "median": each.median} for each in outcomes],
            ("contest", "contestant"),
        ),
        "goals": _merged(known.get("goals", []), goals, ("name",)),
    }
    latest.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _merged(
    old: list[dict[str, object]], new: list[dict[str, object]], key: tuple[str, ...]
) -> list[dict[str, object]]:
    found = {tuple(each[part] for part in key): each for each in [*old, *new]}
    return list(found.values())


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
