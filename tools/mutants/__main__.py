"""`make mutants`: whether the ordinary tests notice each hand-made fault."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tools.mutants import TABLE, Mutant, TableError
from tools.mutants.runner import run

ROOT = Path(__file__).parents[2]


def main() -> int:
    """Run the mutants that were asked for; 1 if one is not caught, 2 if the table is wrong."""
    asked = _arguments()
    chosen = [mutant for mutant in TABLE if _is_wanted(mutant, asked.only)]
    try:
        for mutant in chosen:
            mutant.applied(ROOT)
            mutant.check_tests(ROOT)
        if not chosen:
            raise TableError(f"no mutant is called {' or '.join(asked.only)}")
    except TableError as error:
        print(error, file=sys.stderr)
        return 2
    outcomes: Counter[str] = Counter()
    for verdict in run(chosen, ROOT, workers=asked.workers, limit=asked.limit):
        outcomes[verdict.outcome] += 1
        print(verdict.line, flush=True)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    return 0 if outcomes["caught"] == len(chosen) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("only", nargs="*", help="names, or parts of names or of files")
    parser.add_argument("--workers", type=int, default=2, help="runs of pytest at a time")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for a run of pytest")
    return parser.parse_args()


def _is_wanted(mutant: Mutant, only: list[str]) -> bool:
    return not only or any(part in mutant.name or part in mutant.file for part in only)


if __name__ == "__main__":
    sys.exit(main())
