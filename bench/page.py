"""The page of the docs about the bench, made from the results: `python -m bench --page`.

`render` is a plain function of the document in `results/latest.json`; a test holds that the page
in the docs is what it returns. The curves are drawn by matplotlib in an environment of its own;
where that cannot be installed, the pictures that are there stay. So are our costs against those of
each peer.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from bench.harness import RESULTS

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "bench.md"
PICTURES = DOCS / "bench"

AGAINST_PEERS = {
    "against-peers-in-a-process.png": (
        "Pools, synchronisation and limits against their peers",
        ("pools_peers", "primitives_peers", "ratelimit_peers"),
    ),
    "against-peers-with-a-store.png": (
        "Queues and logs against their peers",
        (
            *("queue_sqlite", "queue_postgres", "queue_postgres_wide"),
            *("queue_idle", "queue_redis", "storage_peers"),
        ),
    ),
}
"""The pictures of our costs against our peers': the title and the subjects of each."""
DONE = {
    "pools_peers": "pool, ",
    "ratelimit_peers": "limit, ",
    "queue_idle": "idle pick-up, ",
    "queue_redis": "beside Redis, ",
    "storage_peers": "append, ",
}
"""What is done in a subject whose goals do not say it."""
PEER = re.compile(
    r"(?:ahead of|wakes before|half of|[\d.]+ times) (.+?)(?:'s (?:rate|cost))? \((.+)\)"
)
"""How a goal names its peer and what was done."""

INTRODUCTION = """# The bench

Made by `python -m bench --page` from `bench/results/latest.json`; do not edit it by hand.

`make bench` compares harn with what one would pick instead and with the bare floor, in the same run
on the same machine. Contestants take turns, the warm-up round does not count, and each figure is a
median; ± is half of the distance between the best and the worst round. Smaller is better. Ratios
are against the first line of each table. Peers run in environments and processes of their own.
"""


BEHIND = """## Where a goal is not met, and why

- **A job's life, on both stores.** Four records and an index beside them, the fair share, the
  state of each attempt: [what a job costs](design/queue-cost.md) says where each microsecond goes
  and what was tried. PgQueuer keeps one table and no log; a third of its time is what ours costs
  the server alone.
- **Enqueueing and emitting one at a time.** huey, litequeue and persist-queue write on the
  caller's thread, in one table and with fewer pages in each commit; ours goes through a
  writer's thread, so that the loop never waits for the disk. In batches, or with many callers,
  we are ahead. On PostgreSQL an enqueue is one round trip.
- **Idle pick-up.** Enqueue and claim are two fsynced transactions, which is most of it; on
  PostgreSQL they are three round trips. The wake-up itself takes a tenth to a third of a
  millisecond.
- **A semaphore with a line.** It counts what each task holds, so that a deadlock can be named;
  anyio's does not ([permits](design/permits.md)).
- **Spawn in a scope.** A task in the tree with its frame, handle and owner, against a bare one.
  [What each part costs](design/tasks.md#what-a-spawned-task-costs).
"""


def render(results: dict[str, Any], pictures: set[str] | None = None) -> str:
    """Return the page about *results*; *pictures* are the curves that there are."""
    parts = [INTRODUCTION, _machine(results["machine"]), _quick(results.get("quick", []))]
    parts += [_goals(results["goals"]), _against_peers(pictures), BEHIND]
    outcomes = results["outcomes"]
    for subject in dict.fromkeys(each["subject"] for each in outcomes):
        here = [each for each in outcomes if each["subject"] == subject]
        parts.append(_subject(subject, results["about"].get(subject, ""), here, pictures))
    parts.append(_left_out(results.get("left_out", [])))
    parts.append(_seconds(results.get("seconds", {})))
    return "\n".join(part for part in parts if part)


def picture(contest: str) -> str:
    """Name the file of a contest's curve."""
    return re.sub(r"[^a-z0-9]+", "-", contest.lower()).strip("-") + ".png"


def write() -> int:
    """Draw the curves and write the page."""
    latest = RESULTS / "latest.json"
    results = json.loads(latest.read_text(encoding="utf-8"))
    _draw(results, latest)
    PICTURES.mkdir(exist_ok=True)
    for drawn in RESULTS.glob("*.png"):
        shutil.copy(drawn, PICTURES / drawn.name)
    PAGE.write_text(render(results, known_pictures()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(DOCS.parent)}")
    return 0


def known_pictures() -> set[str]:
    """List the curves that the docs have."""
    return {each.name for each in PICTURES.glob("*.png")}


def ratios(goals: list[dict[str, Any]], subjects: tuple[str, ...]) -> list[tuple[str, float]]:
    """Return our cost as a multiple of each peer's, and at what, for the goals of *subjects*."""
    named = [(PEER.fullmatch(each["name"]), each) for each in goals if each["subject"] in subjects]
    return [
        (f"{DONE.get(each['subject'], '')}{what[2]}: {what[1]}", each["measured"])
        for what, each in named
        if what and each["measured"]
    ]


def _draw(results: dict[str, Any], latest: Path) -> None:
    from bench.peers import MATPLOTLIB, PeerMissing, play

    contests = {each["contest"] for each in results["outcomes"] if each.get("series")}
    what = {
        "results": str(latest),
        "into": str(RESULTS),
        "curves": {each: picture(each) for each in contests},
        "ratios": {
            name: (title, ratios(results["goals"], subjects))
            for name, (title, subjects) in AGAINST_PEERS.items()
        },
    }
    try:
        play(MATPLOTLIB, "plot", what, timeout=120)
    except PeerMissing as missing:
        print(f"no curves: matplotlib could not be installed: {missing}", file=sys.stderr)


def _machine(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"Measured {machine['measured']} on {machine['system']}, {machine['cores']} cores, Python"
        f" {machine['python']}, {versions}.\n"
    )


def _quick(subjects: list[str]) -> str:
    if not subjects:
        return ""
    return (
        f"**One round only, not to be quoted:** {', '.join(subjects)}. These were run with"
        " `--quick`, to see that they run.\n"
    )


def _goals(goals: list[dict[str, Any]]) -> str:
    met = sum(bool(each["met"]) for each in goals)
    lines = [f"## Goals\n\n{met} of {len(goals)} met.\n", "| goal | measured | wanted | |"]
    lines.append("|---|---:|---:|---|")
    for each in goals:
        ratio = "not measured" if each["measured"] is None else f"{each['measured']:g}x"
        mark = "met" if each["met"] else "**not met**"
        mark += f": {each['why']}" if each.get("why") and not each["met"] else ""
        lines.append(f"| {each['subject']}: {each['name']} | {ratio} | {each['goal']} | {mark} |")
    return "\n".join(lines) + "\n"


def _against_peers(pictures: set[str] | None) -> str:
    shown = [
        f"![{title}](bench/{name})"
        for name, (title, _) in AGAINST_PEERS.items()
        if name in (pictures or set())
    ]
    return "\n\n".join(["## Against each peer", *shown]) + "\n" if shown else ""


def _subject(
    name: str, about: str, outcomes: list[dict[str, Any]], pictures: set[str] | None
) -> str:
    parts = [f"## {name}\n", about]
    for contest in dict.fromkeys(each["contest"] for each in outcomes):
        here = [each for each in outcomes if each["contest"] == contest]
        first = here[0]["median"]
        parts.append(
            f"\n### {contest}\n\n| | {here[0]['unit']} | ratio | | |\n|---|---:|---:|---|---|"
        )
        for each in here:
            ratio = each["median"] / first if first else 0
            parts.append(
                f"| {each['contestant']} {each['version']} | {each['median']:,.2f} | {ratio:.2f}x"
                f" | ±{each['spread'] * 50:.0f}%, {_rounds(each)} | {each['note']} |"
            )
        if picture(contest) in (pictures or set()):
            parts.append(f"\n![{contest}](bench/{picture(contest)})")
    return "\n".join(parts) + "\n"


def _rounds(outcome: dict[str, Any]) -> str:
    return "1 round" if len(outcome["samples"]) == 1 else f"{len(outcome['samples'])} rounds"


def _seconds(seconds: dict[str, float]) -> str:
    if not seconds:
        return ""
    each = ", ".join(f"{name} {took:.0f} s" for name, took in sorted(seconds.items()))
    return f"## What it took\n\n{sum(seconds.values()) / 60:.0f} minutes: {each}.\n"


def _left_out(told: list[dict[str, str]]) -> str:
    if not told:
        return ""
    lines = [f"- {each['subject']}: {each['why']}" for each in told]
    return "## What was left out\n\n" + "\n".join(lines) + "\n"
