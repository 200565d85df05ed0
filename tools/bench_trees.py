"""Compare the bench of this tree with that of another checkout: which rows became worse?

    git worktree add ../before 397e485
    python -m tools.bench_trees ../before pools queue --turns 3

The two trees take turns, each with its own Python environment and its own bench, so that a machine
that slows down slows both. Rows are matched by subject, contest and contestant. A row is *worse* if
its median rose by more than its own spread: what the bench's page shows as ±, half the distance
between the best and the worst round, of the tree where it is larger. Contestants that do without
harn run the same code in both trees, so their ratio is the machine's drift; it is shown beside each
row, and a rise within it is not counted. Subjects with peers (`*_peers`, `queue_sqlite`, …) compare
with them already, in one run; they are for `python -m bench`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent.parent

Key = tuple[str, str, str]
"""Subject, contest and contestant."""

BARE = (
    *("bare", "asyncio", "create_task", "Semaphore", "ThreadPoolExecutor", "Python", "the "),
    "pyrate-limiter",
)
"""How the names of contestants begin that do without harn."""


@dataclass(frozen=True, slots=True)
class Row:
    """The rounds of one contestant in both trees, in microseconds or the contest's unit."""

    key: Key
    before: tuple[float, ...]
    now: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Return the median of now against the one before; above 1 is slower."""
        return statistics.median(self.now) / statistics.median(self.before)

    @property
    def spread(self) -> float:
        """Return half the distance between best and worst round, of the tree where it is larger."""
        return max(_spread(self.before), _spread(self.now))

    @property
    def is_harn(self) -> bool:
        return not self.key[2].startswith(BARE)


def _spread(samples: Sequence[float]) -> float:
    return (max(samples) - min(samples)) / 2 / statistics.median(samples)


def drift(rows: Iterable[Row], subject: str, contest: str) -> float:
    """Return how much slower the other contestants became: of the contest, else of the subject.

    1.0 means that the machine was as fast for both trees, or that nothing tells.
    """
    others = [row for row in rows if not row.is_harn and row.key[0] == subject]
    beside = [row for row in others if row.key[1] == contest] or others
    return statistics.median([row.ratio for row in beside]) if beside else 1.0


def worse(rows: Sequence[Row]) -> list[Row]:
    """Return harn's rows that rose by more than their own spread and by more than the drift."""
    return [
        row
        for row in rows
        if row.is_harn and row.ratio / max(1.0, drift(rows, *row.key[:2])) > 1 + row.spread
    ]


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table, the largest rise first."""
    bad = {row.key for row in worse(rows)}
    yield "| subject | contest | contestant | before | now | ratio | ± | drift | |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in sorted(rows, key=lambda each: -each.ratio):
        before, now = statistics.median(row.before), statistics.median(row.now)
        mark = "worse" if row.key in bad else "" if row.is_harn else "not harn"
        yield (
            f"| {' | '.join(row.key)} | {before:.4g} | {now:.4g} | {row.ratio:.2f} "
            f"| {row.spread:.0%} | {drift(rows, *row.key[:2]):.2f} | {mark} |"
        )


def matched(before: dict[Key, list[float]], now: dict[Key, list[float]]) -> list[Row]:
    """Pair the rows that both trees have."""
    both = [key for key in now if before.get(key) and now[key] and statistics.median(before[key])]
    return [Row(key, tuple(before[key]), tuple(now[key])) for key in both]


def measure(tree: Path, subject: str, into: dict[Key, list[float]]) -> None:
    """Run *subject* once in *tree* and add its rounds to *into*; say so if it fails.

    The tree's recorded results are put back: the bench's page is made from them.
    """
    python = tree / ".venv" / "bin" / "python"
    results = tree / "bench" / "results" / "latest.json"
    recorded = results.read_bytes() if results.exists() else None
    print(f"{subject} in {tree}", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(  # noqa: S603  # a checkout that the caller names
            [str(python), "-m", "bench", subject], cwd=tree, stdout=subprocess.DEVNULL, check=False
        )
        if done.returncode:
            print(f"{subject} in {tree}: exit {done.returncode}, left out", file=sys.stderr)
            return
        outcomes = json.loads(results.read_text())["outcomes"]
    finally:
        if recorded is not None:
            results.write_bytes(recorded)
    for each in outcomes:
        if each["subject"] == subject:
            key = (subject, each["contest"], each["contestant"])
            into.setdefault(key, []).extend(each["samples"])


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table and what only one tree has; exit 1 if a row became worse, 2 without rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="the other checkout, with its .venv")
    parser.add_argument("subjects", nargs="+", metavar="SUBJECT")
    parser.add_argument("--turns", type=int, default=2, help="how often each tree runs (2)")
    asked = parser.parse_args(argv)
    before: dict[Key, list[float]] = {}
    now: dict[Key, list[float]] = {}
    for subject in asked.subjects:
        for turn in range(asked.turns):
            pair = [(asked.before.resolve(), before), (HERE, now)]
            # The tree that runs second finds the machine warm, so they change places.
            for tree, samples in reversed(pair) if turn % 2 else pair:
                measure(tree, subject, samples)
    rows = matched(before, now)
    print("\n".join(table(rows)))
    for key in sorted(set(before) ^ set(now)):
        print(f"only {'before' if key in before else 'now'}: {', '.join(key)}", file=sys.stderr)
    bad = worse(rows)
    print(f"{len(bad)} of {sum(row.is_harn for row in rows)} rows are worse", file=sys.stderr)
    if not rows:
        return 2
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
