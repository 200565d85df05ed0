"""What the tests say about each change: copies of the tree, one change at a time in each."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.mutant import Mutant

COPIED = ("src", "tests", "docs", "examples", "tools", "bench", "deploy")
FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "LICENSE")
PASSED, FAILED = 0, 1
"""What pytest's exit code says; any other is about pytest itself."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of *mutant*: "caught", "survived", or "error" with what went wrong."""

    mutant: Mutant
    outcome: str
    seconds: float
    detail: str = ""

    @property
    def line(self) -> str:
        """One line for the report."""
        shown = f"{self.outcome:<8}  {self.seconds:5.1f} s  {self.mutant.name}"
        return f"{shown}\n{self.detail}" if self.detail else shown


def run(mutants: Sequence[Mutant], root: Path, *, workers: int, limit: float) -> Iterator[Verdict]:
    """Yield a verdict for each of *mutants*, as they come; each run of pytest has *limit* seconds.

    The tests must pass on the untouched tree: one that fails anyway would catch everything.
    """
    with tempfile.TemporaryDirectory(prefix="harn-mutants-") as place:
        bench = _Bench(limit)
        for number in range(workers):
            bench.copies.put(_copy(root, Path(place) / str(number)))
        with ThreadPoolExecutor(workers) as pool:
            running = [pool.submit(bench.judge, mutant) for mutant in mutants]
            for done in as_completed(running):
                yield done.result()


def _copy(root: Path, to: Path) -> Path:
    to.mkdir()
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, to / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        if (root / name).is_file():
            shutil.copy2(root / name, to / name)
    return to


class _Bench:
    """The copies that are free, and the tests that are known to pass without any change."""

    def __init__(self, limit: float) -> None:
        self.copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._limit = limit
        self._passing: set[tuple[str, ...]] = set()

    def judge(self, mutant: Mutant) -> Verdict:
        """Run the tests of *mutant* without the change, unless that was done, and with it."""
        copy = self.copies.get()
        began = time.monotonic()
        try:
            if mutant.tests not in self._passing:
                code, told = _pytest(copy, mutant.tests, self._limit)
                if code != PASSED:
                    return _verdict(mutant, "error", began, f"    without the change:\n{told}")
                self._passing.add(mutant.tests)
            with _changed(mutant, copy):
                code, told = _pytest(copy, mutant.tests, self._limit)
        finally:
            self.copies.put(copy)
        if code == FAILED:
            return _verdict(mutant, "caught", began, _failed_test(told))
        if code == PASSED:
            return _verdict(mutant, "survived", began, f"    {mutant.file}: {mutant.why}")
        return _verdict(mutant, "error", began, told)


def _failed_test(told: str) -> str:
    failed = [line.split(" - ")[0] for line in told.splitlines() if "FAILED tests/" in line]
    return "    by " + failed[0].split("FAILED ")[1] if failed else ""


def _verdict(mutant: Mutant, outcome: str, began: float, detail: str = "") -> Verdict:
    return Verdict(mutant, outcome, time.monotonic() - began, detail)


@contextmanager
def _changed(mutant: Mutant, copy: Path) -> Iterator[None]:
    path = mutant.path(copy)
    original = path.read_text()
    path.write_text(mutant.applied(copy))
    try:
        yield
    finally:
        path.write_text(original)


def _pytest(copy: Path, tests: Sequence[str], limit: float) -> tuple[int | None, str]:
    """Run *tests* on the tree at *copy*: pytest's exit code, None when it took too long."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    command += ["--timeout", str(limit / 2), *(f"tests/{test}" for test in tests)]
    # The copy comes before the project that is installed here; without bytecode, a file that was
    # changed twice within a second cannot be taken for the one before.
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}", "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(  # noqa: S603
        command,
        cwd=copy,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        told, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None, f"    more than {limit:g} s; raise LIMIT, or name a quicker test"
    return process.returncode, "".join(f"    {line}\n" for line in told.splitlines()[-25:])
