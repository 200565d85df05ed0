"""How every comparison here is run, so that a sceptic can repeat it.

A *subject* is one file in this package with `SUBJECT`, a docstring that says what is measured and
why the comparison is fair, and `def contests() -> Iterable[Contest]`. A `Contest` names one thing
to measure (`"submit and complete a no-op"`), its unit, and its contestants: functions that do it
once and return the cost of one operation in microseconds (`Contestant.run(n)` decides how to time;
`timed` and `timed_async` help). Contestants of a contest take turns (A B C A B C ...), the first
round is warm-up and thrown away, and the result is the median of at least five rounds with its
spread. A `Goal` compares two contestants of one contest, or one contestant at two sizes, as a
ratio; it is met or not, by how much. Contestants with a *series* and a *size* are points of a
curve, which is drawn. A contestant that cannot take part raises `LeftOut`; the contest continues
without it.

    python -m bench                 every subject, each in a process of its own
    python -m bench pools           one of them
    python -m bench pools --quick   the warm-up round only, to see that it runs
    python -m bench --page          draw the curves and write docs/bench.md from the last results

A subject ends within three minutes and the whole within twenty. The first counted round shows what
a round costs; where five of each would not fit, the dearest contests get fewer, and the output says
so. A subject that does not end is ended. Results go to the terminal and, after each subject, to
`bench/results/latest.json` (`--quick`: `quick.json`).
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
import signal
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROUNDS = 5
SUBJECT_SECONDS = 160.0
ALL_SECONDS = 1100.0
INSTALL_SECONDS = 150.0
GRACE_SECONDS = 20.0
"""A round that began in time may end later by so much; then the subject is ended."""

USUAL_SECONDS = {
    "growth": 35,
    "jobs": 30,
    "pools": 115,
    "pools_peers": 70,
    "primitives": 22,
    "primitives_peers": 50,
    "queue": 25,
    "queue_idle": 145,
    "queue_postgres": 145,
    "queue_postgres_wide": 135,
    "queue_redis": 50,
    "queue_sqlite": 95,
    "ratelimit": 40,
    "ratelimit_peers": 30,
    "start": 15,
    "state": 40,
    "storage": 40,
    "storage_peers": 35,
    "tasks": 10,
    "triggers": 15,
}
"""What a subject takes with all its rounds on two cores: how the whole time is shared out."""

FLAGS = {"--quick", "--page"}
NO_SUBJECTS = {"harness", "page", "peers", "__main__"}


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do it: *run* does it and returns microseconds per operation."""

    name: str
    run: Callable[[], float]
    note: str = ""
    version: str = ""
    series: str = ""
    size: float | None = None
    rounds: int = ROUNDS
    """Fewer for a contestant that is slow and far away."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One thing to measure, and who takes part. Smaller is better."""

    name: str
    contestants: tuple[Contestant, ...]
    unit: str = "µs/op"
    rounds: int = ROUNDS
    """Fewer where a figure hardly varies and a round is long."""
    warm_up: bool = True
    """False where each contestant is a process that warms up by itself."""


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
    why: str = ""
    """What keeps it from being met, told where it is not."""


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
    """A contestant cannot take part, for the reason given."""


_running = ""
left_out: list[dict[str, str]] = []
"""What did not take part, and where the time did not suffice: one sentence each."""


def leave_out(why: str) -> None:
    """Say it once, now and below the table."""
    told = {"subject": _running, "why": why}
    if told not in left_out:
        left_out.append(told)
        print(why, file=sys.stderr)


def budget(amount: float) -> Contestant:
    """Return a line to stay below, for goals that are no ratio."""
    return Contestant("the budget", lambda: amount)


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
        self.seconds: dict[str, float] = {}
        self.rounds = 0
        self.wanted = 0
        self.planned = 0

    @property
    def left(self) -> float:
        """Return the seconds that the planned rounds will still take."""
        return sum(
            max(0, min(self.planned, each.rounds) - self.rounds) * self.seconds.get(each.name, 0.0)
            for each in self.contest.contestants
            if each.name in self.outcomes
        )

    def round(self) -> None:
        """Run each contestant once, in turn."""
        for each in self.contest.contestants:
            mine = self.outcomes.get(each.name)
            if mine is not None and len(mine.samples) < each.rounds:
                began = time.perf_counter()
                try:
                    mine.samples.append(each.run())
                except LeftOut as why:
                    del self.outcomes[each.name]
                    leave_out(f"{self.contest.name}: {each.name} was left out: {why}")
                self.seconds[each.name] = time.perf_counter() - began
        self.rounds += 1

    def forget_the_warm_up(self) -> None:
        for each in self.outcomes.values():
            each.samples.clear()


def run_subject(name: str, rounds: int, seconds: float) -> tuple[list[Outcome], list[Goal]]:
    """Measure one subject within *seconds*: fewer rounds rather than no end."""
    global _running
    _running = name
    until = time.perf_counter() + seconds
    subject = importlib.import_module(f"bench.{name}")
    entries = _warm_up(subject.contests(), name, until)
    for entry in entries:
        entry.wanted = min(rounds, entry.contest.rounds)
        _go_on(entry, min(1, entry.wanted), until)
    for entry in entries:
        _plan(entries, until - time.perf_counter())
        while entry.rounds < entry.planned and time.perf_counter() < until:
            _go_on(entry, entry.rounds + 1, until)
            _plan(entries, until - time.perf_counter())
        if entry.rounds < entry.wanted:
            kind = f"{entry.rounds} rounds" if entry.rounds else "the warm-up round only"
            leave_out(f"{entry.contest.name}: {kind} instead of {entry.wanted}, to end in time")
    return [each for entry in entries for each in entry.outcomes.values()], subject.GOALS


def _warm_up(contests: Iterable[Contest], subject: str, until: float) -> list[Entry]:
    """Run each contestant once; a warm-up counts only if no other round follows."""
    entries = []
    for contest in contests:
        if time.perf_counter() > until:
            leave_out(f"{contest.name}: not begun, out of time")
            continue
        entries.append(Entry(contest, subject))
        _progress(f"{contest.name}: warm-up")
        entries[-1].round()
        if contest.warm_up:
            entries[-1].rounds = 0
    return entries


def _go_on(entry: Entry, rounds: int, until: float) -> None:
    while entry.rounds < rounds and time.perf_counter() < until:
        if not entry.rounds:
            entry.forget_the_warm_up()
        _progress(f"{entry.contest.name}: round {entry.rounds + 1} of {entry.wanted}")
        entry.round()


def _plan(entries: list[Entry], seconds: float) -> None:
    """Plan all the rounds that are wanted, then take from the slowest until it fits.

    It is planned again after each round: the first one may have filled files and warmed caches.
    """
    for entry in entries:
        entry.planned = entry.wanted
    while sum(each.left for each in entries) > max(0.0, seconds):
        max(entries, key=lambda each: each.left).planned -= 1


def judge(goal: Goal, subject: str, outcomes: list[Outcome]) -> dict[str, object]:
    """Compare what was measured with *goal*; what was not measured is not met."""
    bound = f"<= {goal.at_most:g}x" if goal.at_most is not None else f">= {goal.at_least:g}x"
    told: dict[str, object] = {"subject": subject, "name": goal.name, "goal": bound}
    told |= {"why": goal.why} if goal.why else {}
    medians = {(each.contest, each.contestant): each.median for each in outcomes}
    mine = medians.get((goal.contest, goal.contestant))
    other = medians.get((goal.against_contest or goal.contest, goal.against))
    if mine is None or not other:
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
    if len(wanted) == 1:
        run_here(wanted[0], quick)
    else:
        run_apart(wanted, quick)
    return 0


def run_here(name: str, quick: bool) -> None:
    """Measure one subject in this process; print and save what came out."""
    seconds = float(os.environ.get("BENCH_SECONDS", SUBJECT_SECONDS))
    began = time.perf_counter()
    outcomes, aims = run_subject(name, 0 if quick else ROUNDS, seconds)
    goals = [judge(goal, name, outcomes) for goal in aims]
    _print(outcomes, goals)
    _save(name, outcomes, goals, time.perf_counter() - began, quick)


def run_apart(names: list[str], quick: bool) -> None:
    """Measure each subject in a process of its own, so that none inherits another's heap."""
    from bench.peers import install_all

    until = time.perf_counter() + ALL_SECONDS
    install_all(INSTALL_SECONDS)
    took: dict[str, float] = {}
    for done, name in enumerate(names):
        print(f"\n== {name}", flush=True)
        began = time.perf_counter()
        seconds = share(name, names[done:], until - began)
        if not _in_a_process(name, seconds, quick):
            _tell_failure(name, quick)
        took[name] = time.perf_counter() - began
    print("\ntook", f"{sum(took.values()):.0f} s:", end=" ")
    print(", ".join(f"{name} {seconds:.0f}" for name, seconds in took.items()))


def share(name: str, left: list[str], seconds: float) -> float:
    """Return *name*'s part of the *seconds* that those *left* have, by what they usually take."""
    usual = {each: USUAL_SECONDS.get(each, 60) for each in left}
    return max(1.0, min(SUBJECT_SECONDS, seconds * usual[name] / sum(usual.values())))


def _in_a_process(name: str, seconds: float, quick: bool) -> bool:
    """Say whether the subject ended well; one that does not end is interrupted, then killed."""
    command = [sys.executable, "-m", "bench", name, *(["--quick"] if quick else [])]
    environment = {**os.environ, "BENCH_SECONDS": str(seconds)}
    with subprocess.Popen(command, cwd=RESULTS.parent.parent, env=environment) as process:
        try:
            return process.wait(seconds + GRACE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(GRACE_SECONDS / 2)
        except subprocess.TimeoutExpired:
            process.kill()
    return False


def _tell_failure(name: str, quick: bool) -> None:
    """Save that *name* gave no results, so that none of an earlier run stay."""
    global _running
    _running = name
    leave_out(f"{name}: it failed or did not end, nothing was measured")
    aims = importlib.import_module(f"bench.{name}").GOALS
    _save(name, [], [judge(goal, name, []) for goal in aims], 0.0, quick)
    left_out.clear()


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
        found = f"{goal['measured']}x" if goal["measured"] is not None else "not measured"
        why = f"; {goal['why']}" if goal.get("why") and not goal["met"] else ""
        print(f"  {mark} {goal['name']}: {found} ({goal['goal']}){why}")
    if left_out:
        print("\nleft out")
    for each_left in left_out:
        print(f"  {each_left['why']}")


def _save(
    name: str,
    outcomes: list[Outcome],
    goals: list[dict[str, object]],
    seconds: float,
    quick: bool,
) -> None:
    """Write the results of one subject; those of the others stay."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("quick.json" if quick else "latest.json")
    known = json.loads(path.read_text()) if path.exists() else {}
    document = {
        "machine": machine(),
        "ran": sorted({name, *known.get("ran", [])}),
        "quick": sorted({*known.get("quick", [])} - {name} | ({name} if quick else set())),
        "seconds": {**known.get("seconds", {}), name: round(seconds, 1)},
        "about": {**known.get("about", {}), name: _about(name)},
        "outcomes": _with_others(
            known, "outcomes", name,
            [{**asdict(each), "median": each.median, "spread": each.spread} for each in outcomes],
        ),
        "goals": _with_others(known, "goals", name, goals),
        "left_out": _with_others(known, "left_out", name, left_out),
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def machine() -> dict[str, object]:
    """Say where this was measured, and with which versions."""
    names = ("harn-runtime", "apsw", "msgspec", "psycopg")
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


def _with_others(known: dict[str, Any], kind: str, name: str, mine: Iterable[Any]) -> list[Any]:
    others = [each for each in known.get(kind, []) if each.get("subject") not in {None, name}]
    return sorted([*others, *mine], key=lambda each: str(each["subject"]))


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
