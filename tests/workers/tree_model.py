"""The rule of a fair share in a tree, written out: every round touches every child."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from harn import NewJob, SchedulerPolicy
from harn.storage.queue.share_tree import ROOT, lineage
from tests.workers.model import MILLION, Waiting


@dataclass
class TreeModel:
    """Each branch has a round; each child a credit, and the round of its last grant."""

    policy: SchedulerPolicy
    waiting: list[Waiting] = field(default_factory=list)
    ready: Counter[str] = field(default_factory=Counter)
    in_flight: Counter[str] = field(default_factory=Counter)
    credit: Counter[str] = field(default_factory=Counter)
    granted: dict[str, int] = field(default_factory=dict)
    round: Counter[str] = field(default_factory=Counter)
    parent: dict[str, str] = field(default_factory=dict)
    idle_since: dict[str, int] = field(default_factory=dict)
    costs: dict[int, int] = field(default_factory=dict)
    charged: dict[int, int] = field(default_factory=dict)

    def can_be_served(self, node: str) -> bool:
        cap = self.policy.max_concurrent_per_key
        return self.ready[node] > 0 and not 0 < cap <= self.in_flight[node]

    def job(self, key: str, detail: Any) -> NewJob:
        return NewJob(0, tenant_id=key, cost=detail)

    def price(self, cost: int) -> int:
        least = self.policy.quantum * MILLION // 100
        return max(cost, least) if self.policy.charge == "cost" else MILLION

    def grant(self, node: str, round: int) -> None:
        if self.granted.get(node, -1) < round:
            had, full = self.credit[node], self.policy.full_credit(node)
            self.credit[node] = max(had, min(full, had + full))
            self.granted[node] = round

    def move(self, key: str, ready: int, in_flight: int, now: int) -> None:
        """Add to the work of a leaf and of all nodes above it."""
        for node, parent in lineage(key, "/"):
            self.parent[node] = parent
            if now - self.idle_since.get(node, now) >= 60_000:
                self.credit[node], self.granted[node] = 0, -1
            had, was = self.ready[node] > 0, self.can_be_served(node)
            self.ready[node] += ready
            self.in_flight[node] += in_flight
            if self.ready[node] <= 0 or not had:
                self.credit[node] = min(0, self.credit[node])
            if self.can_be_served(node) and not was and self.credit[node] <= 0:
                self.grant(node, self.round[parent])
            if self.ready[node] or self.in_flight[node]:
                self.idle_since.pop(node, None)
            else:
                self.idle_since.setdefault(node, now)

    def enter(self, job: Waiting, now: int) -> None:
        self.waiting.append(job)
        self.move(job.key, 1, 0, now)

    def pick(self, now: int) -> Waiting | None:
        node, path = ROOT, list[str]()
        while not path or path[-1].endswith("\x04"):
            children = sorted(
                n for n, p in self.parent.items() if p == node and self.can_be_served(n)
            )
            if not children:
                return None
            while all(self.credit[child] <= 0 for child in children):
                self.round[node] += 1
                for child in children:
                    self.grant(child, self.round[node])
            node = next(child for child in children if self.credit[child] > 0)
            path.append(node)
        job = min((j for j in self.waiting if j.key == node), key=lambda j: j.id)
        self.waiting.remove(job)
        self.charged[job.id] = self.price(self.costs[job.id])
        for each in path:
            self.credit[each] -= self.charged[job.id]
            self.ready[each] -= 1
            self.in_flight[each] += 1
            if not self.ready[each]:
                self.credit[each] = min(0, self.credit[each])
        return job

    def correct(self, key: str, amount: int) -> None:
        for node, _ in lineage(key, "/"):
            self.credit[node] += amount

    def end(self, id: int, key: str, now: int, cost: int | None) -> None:
        self.move(key, 0, -1, now)
        if cost is not None and self.policy.charge == "cost":
            self.correct(key, self.charged[id] - self.price(cost))

    def has_ready(self, node: str) -> bool:
        return self.ready[node] > 0

    def wake(self, job: Waiting, now: int) -> None:
        self.waiting.append(job)
        self.move(job.key, 1, -1, now)

    def give_back(self, job: Waiting, now: int) -> None:
        self.wake(job, now)
        self.correct(job.key, self.charged[job.id])
