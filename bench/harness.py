"""How every comparison here is run, so that a sceptic can repeat it.

A *subject* is one file in this package with `SUBJECT`, a docstring that says what is measured and
why the comparison is fair, and `def contests() -> Iterable[Contest]`. A `Contest` names one thing
to measure (`"submit and complete a no-op"`), its unit, and its contestants: functions that do it
once and return the cost of one operation in microseconds (`Contestant.run(n)` decides how to time;
`timed` and `timed_async` help). Contestants of a contest take turns (A B C A B C ...), the first
round is warm-up and thrown away, and the result is the median of at least five rounds with its
spread. A `Goal` compares two contestants of one contest, or one contestant at two sizes, as a
ratio; it is met or not, by how much. Contestants with a *series* and a *size* are points of a
curve, which is drawn. Someone who cannot take part raises `LeftOut`: the contest goes on without.

    python -m bench                 every subject
    python -m bench pools           one of them
    python -m bench pools --quick   the warm-up round only, to see that it runs
    python -m bench --page          draw the curves and write docs/bench.md from the last results

A subject ends within three minutes and the whole within twenty. After the warm-up round it is known
what a round costs; where five of each would not fit, the dearest contests get fewer, and the output
says so. Results go to the terminal and to `bench/results/latest.json` (`--quick`: `quick.json`).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.metadata
import json
import os
import pkgutil
import platform
import sqlite3
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5
SUBJECT_SECONDS = 180.0
ALL_SECONDS = 1200.0
FLAGS = {"--quick", "--page"}
NO_SUBJECTS = {"harness", "page", "peers", "__main__"}


@dataclass(frozen=True, slots=True)
class Contestant:
    """Someone who can do it: *run* does it and returns microseconds per operation."""

    name: str
    run: Callable[[], float]
    note: str = ""
    version: str = ""
    series: str = ""
    size: float | None = None


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
    version: str = ""
    series: str = ""
    size: float | None = None
    subject: str = ""
    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        return (max(self.samples) - min(self.samples)) / self.median if self.median else 0.0


class LeftOut(Exception):
    """Someone cannot take part, for the reason given."""


_running = ""
left_out: list[dict[str, str]] = []
"""Who did not take part, and where the time did not suffice: one sentence each."""


def leave_out(why: str) -> None:
    """Say it once, now and below the table."""
    told = {"subject": _running, "why": why}
    if told not in left_out:
        left_out.append(told)
        print(why, file=sys.stderr)


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


class Entry:
    """A contest under way: who is still in it, what was measured, what a round costs."""

    def __init__(self, contest: Contest, subject: str) -> None:
        self.contest = contest
        self.outcomes = {
            each.name: Outcome(
                contest.name, each.name, contest.unit, each.note,
                each.version, each.series, each.size, subject,
            )
            for each in contest.contestants
        }  # fmt: skip
        self.seconds = 0.0
        self.rounds = 0
        self.planned = 0

    def round(self) -> None:
        """Let everyone do it once, in turn."""
        began = time.perf_counter()
        for each in self.contest.contestants:
            if each.name in self.outcomes:
                try:
                    self.outcomes[each.name].samples.append(each.run())
                except LeftOut as why:
                    del self.outcomes[each.name]
                    leave_out(f"{self.contest.name}: {each.name} was left out: {why}")
        self.seconds = time.perf_counter() - began
        self.rounds += 1

    def forget_the_warm_up(self) -> None:
        for each in self.outcomes.values():
            each.samples.clear()
        self.rounds = 0


def run_subject(name: str, rounds: int, seconds: float) -> tuple[list[Outcome], list[Goal]]:
    """Measure one subject within *seconds*: fewer rounds rather than no end."""
    global _running
    _running = name
    until = time.perf_counter() + seconds
    subject = importlib.import_module(f"bench.{name}")
    entries: list[Entry] = []
    for contest in subject.contests():
        if time.perf_counter() > until:
            leave_out(f"{contest.name}: not begun, out of time")
            continue
        entries.append(Entry(contest, name))
        _progress(f"{contest.name}: warm-up")
        entries[-1].round()
    _plan(entries, rounds, until - time.perf_counter())
    for entry in entries:
        if entry.planned:
            entry.forget_the_warm_up()
        while entry.rounds < entry.planned and time.perf_counter() < until:
            _progress(f"{entry.contest.name}: round {entry.rounds + 1} of {entry.planned}")
            entry.round()
        if not entry.rounds:
            entry.round()
        if entry.rounds < rounds:
            kind = "the warm-up round only" if not entry.planned else f"{entry.rounds} rounds"
            leave_out(f"{entry.contest.name}: {kind} instead of {rounds}, to end in time")
    return [each for entry in entries for each in entry.outcomes.values()], subject.GOALS


def _plan(entries: list[Entry], rounds: int, seconds: float) -> None:
    """Give everyone *rounds*, then take from whoever would spend most until it fits."""
    for entry in entries:
        entry.planned = rounds
    while entries and sum(each.planned * each.seconds for each in entries) > seconds:
        dearest = max(entries, key=lambda each: each.planned * each.seconds)
        if dearest.planned == 0:
            return
        dearest.planned -= 1


def judge(goal: Goal, subject: str, outcomes: list[Outcome]) -> dict[str, object]:
    """Compare what was measured with *goal*; what was not measured is not met."""
    bound = f"<= {goal.at_most:g}x" if goal.at_most is not None else f">= {goal.at_least:g}x"
    told: dict[str, object] = {"subject": subject, "name": goal.name, "goal": bound}
    medians = {(each.contest, each.contestant): each.median for each in outcomes}
    mine = medians.get((goal.contest, goal.contestant))
    other = medians.get((goal.against_contest or goal.contest, goal.against))
    if not mine or not other:
        return {**told, "measured": None, "met": False}
    ratio = mine / other
    met = (goal.at_most is None or ratio <= goal.at_most) and (
        goal.at_least is None or ratio >= goal.at_least
    )
    return {**told, "measured": round(ratio, 3), "met": met}


def main(argv: list[str]) -> int:
    """Run the named subjects (all of them without a name) and print what came out."""
    if unknown := {each for each in argv if each.startswith("-")} - FLAGS:
        print(__doc__)
        return 0 if unknown <= {"-h", "--help"} else 2
    if "--page" in argv:
        from bench.page import write

        return write()
    quick = "--quick" in argv
    wanted = [each for each in argv if not each.startswith("-")] or subjects()
    outcomes: list[Outcome] = []
    goals: list[dict[str, object]] = []
    until = time.perf_counter() + ALL_SECONDS
    for done, name in enumerate(wanted):
        _progress(f"== {name}\n")
        share = (until - time.perf_counter()) / (len(wanted) - done)
        here, aims = run_subject(name, 0 if quick else ROUNDS, min(SUBJECT_SECONDS, share))
        goals += [judge(goal, name, here) for goal in aims]
        outcomes += here
    _print(outcomes, goals)
    _save(outcomes, goals, wanted, quick)
    return 0


def subjects() -> list[str]:
    """List the subjects: the modules of this package that declare one."""
    names = [
        each.name for each in pkgutil.iter_modules(__import__("bench").__path__) if not each[2]
    ]
    return [name for name in names if name not in NO_SUBJECTS]


def _print(outcomes: list[Outcome], goals: list[dict[str, object]]) -> None:
    contest = ""
    for each in outcomes:
        if each.contest != contest:
            contest, best = each.contest, each.median
            print(f"\n{contest} ({each.unit})")
        ratio = each.median / best if best else 0
        print(
            f"  {f'{each.contestant} {each.version}':<38}{each.median:>12.2f}  {ratio:>7.2f}x"
            f"  ±{each.spread * 50:.0f}%  {each.note}"
        )
    if goals:
        print("\ngoals")
    for goal in goals:
        mark = "met    " if goal["met"] else "NOT MET"
        ratio = f"{goal['measured']}x" if goal["measured"] is not None else "not measured"
        print(f"  {mark} {goal['name']}: {ratio} ({goal['goal']})")
    if left_out:
        print("\nleft out")
    for each_left in left_out:
        print(f"  {each_left['why']}")


def _save(
    outcomes: list[Outcome], goals: list[dict[str, object]], ran: list[str], quick: bool
) -> None:
    """Write the results; those of subjects that did not run now stay."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("quick.json" if quick else "latest.json")
    known = json.loads(path.read_text()) if path.exists() else {}
    document = {
        "machine": machine(),
        "ran": sorted({*ran, *known.get("ran", [])}),
        "quick": sorted({*known.get("quick", [])} - {*ran} | {*(ran if quick else ())}),
        "about": {**known.get("about", {}), **{name: _about(name) for name in ran}},
        "outcomes": _others(known, "outcomes", ran)
        + [{**asdict(each), "median": each.median, "spread": each.spread} for each in outcomes],
        "goals": _others(known, "goals", ran) + goals,
        "left_out": [*_others(known, "left_out", ran), *left_out],
    }
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def machine() -> dict[str, object]:
    """Say where this was measured, and with which versions."""
    names = ("harn", "apsw", "msgspec", "psycopg")
    found = {name: _version(name) for name in names}
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "measured": time.strftime("%Y-%m-%d"),
        "versions": {**found, "sqlite (standard library)": sqlite3.sqlite_version},
    }


def _about(name: str) -> str:
    return (importlib.import_module(f"bench.{name}").__doc__ or "").strip()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _others(known: dict[str, Any], kind: str, ran: list[str]) -> list[Any]:
    return [each for each in known.get(kind, []) if each.get("subject") not in {None, *ran}]


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
