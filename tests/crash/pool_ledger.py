"""What the processes of a shared pool have noted outside the store, and what must hold of it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from harn import PoolSnapshot

PATIENCE = 60.0


class Line(NamedTuple):
    """One line of the ledger."""

    what: str
    name: str
    pid: int
    at: float


class Ledger:
    """The lines that the processes have written, and what was done to the processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.killed: dict[int, float] = {}
        """Processes that were killed, and when."""
        self.pauses: dict[int, list[float]] = defaultdict(list)
        """Processes that were paused, and when each pause began."""

    @property
    def lines(self) -> list[Line]:
        if not self.path.exists():
            return []
        whole = [text.split() for text in self.path.read_text().splitlines(keepends=True)]
        return [Line(line[0], line[1], int(line[2]), float(line[3])) for line in whole if line[3:]]

    def names(self, what: str) -> list[str]:
        return [line.name for line in self.lines if line.what == what]

    def count(self, what: str, pids: Iterable[int]) -> int:
        """Return how many lines of this sort these processes have written."""
        wanted = set(pids)
        return sum(line.what == what and line.pid in wanted for line in self.lines)

    async def until(self, condition: Callable[[], bool], within: float = PATIENCE) -> None:
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(0.02)

    def most_at_once(self) -> int:
        """Return how many tasks ran at one instant in processes that were alive.

        What a process ran when it was paused counts until the pause began if it lost its lease by
        the pause: from then on the slot is not its own, and it finds that out when it wakes.
        """
        lines = self.lines
        lost = [(line.pid, line.at) for line in lines if line.what == "lost"]
        edges: list[tuple[float, int]] = []
        running: dict[tuple[str, int], float] = {}

        def ran(pid: int, begun: float, ended: float) -> None:
            for paused in self.pauses.get(pid, ()):
                if begun < paused < ended and any(each == pid and at > paused for each, at in lost):
                    ended = paused
            edges.extend([(begun, 1), (ended, -1)])

        for line in lines:
            if line.what == "begin":
                running[line.name, line.pid] = line.at
            elif line.what == "end":
                ran(line.pid, running.pop((line.name, line.pid)), line.at)
        for (_, pid), at in running.items():
            stopped = [when for each, when in lost if each == pid and when > at]
            ran(pid, at, min([self.killed.get(pid, float("inf")), *stopped]))
        most = now = 0
        for _, change in sorted(edges):
            now += change
            most = max(most, now)
        return most


def check_calls(ledger: Ledger, seen: PoolSnapshot, cap: int) -> None:
    """Check what holds after every run, by the ledger and the pool's last snapshot."""
    assert ledger.most_at_once() <= cap
    begun = Counter(ledger.names("begin"))
    assert not [name for name, times in begun.items() if times > 1 and "again" not in name]
    done = set(ledger.names("end"))
    tasks = {task.key: task for task in seen.tasks}
    assert len(tasks) == len(seen.tasks), "a key made two tasks"
    for name in ledger.names("submitted"):
        task = tasks[name]
        if task.status == "completed":
            assert name in done
        else:
            assert not name.startswith("again"), (name, task)
            assert task.status == "failed", (name, task)
            lost = "interrupted" if name.startswith("once") else task.stale_reason
            assert task.stale_reason == lost in ("interrupted", "never_started"), (name, task)
