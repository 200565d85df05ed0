"""The scheduler's rule, written out in full over plain records: slow, and easy to believe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harn import NewJob

QUARTER = 15 * 60 * 1000
MILLION = 1_000_000


@dataclass
class Waiting:
    id: int
    key: str
    priority: int
    at: int


def rank(job: Waiting, now: int) -> int:
    return max(0, job.priority - (now - job.at) // QUARTER)


@dataclass
class Model:
    """Every key's credit, held in a dict; every refill touches every key."""

    weights: dict[str, int] = field(default_factory=dict)
    quantum: int = 1
    starvation: int = 0
    cap: int = 0
    ready: list[Waiting] = field(default_factory=list)
    in_flight: dict[str, int] = field(default_factory=dict)
    credit: dict[str, int] = field(default_factory=dict)
    last: str = ""
    promoted: bool = False
    rounds: int = 0
    promotions: int = 0
    taken_in: dict[int, int] = field(default_factory=dict)
    costs: dict[int, int] = field(default_factory=dict)

    def job(self, key: str, detail: Any) -> NewJob:
        priorities: Any = ("high", "normal", "low")
        return NewJob(0, tenant_id=key, priority=priorities[detail])

    def full(self, key: str) -> int:
        return self.weights.get(key, 1) * self.quantum

    def enter(self, job: Waiting, now: int) -> None:
        self.ready.append(job)

    def eligible(self) -> list[str]:
        keys = {job.key for job in self.ready}
        return sorted(k for k in keys if not self.cap or self.in_flight.get(k, 0) < self.cap)

    def rotation(self) -> list[str]:
        keys = self.eligible()
        return [k for k in keys if k > self.last] + [k for k in keys if k <= self.last]

    def pick(self, now: int) -> Waiting | None:
        keys = self.rotation()
        if not keys:
            return None
        old = min((j for j in self.ready if j.key in keys), key=lambda j: (j.at, j.key, j.id))
        if (
            self.starvation
            and now - old.at >= self.starvation
            and not (self.promoted and len(keys) > 1)
        ):
            self.promoted = True
            self.promotions += 1
            return self.take(old)
        if not any(self.credit.get(k, 0) for k in keys):
            self.rounds += 1
            for k in keys:
                self.credit[k] = self.full(k)
        key = next(k for k in keys if self.credit.get(k, 0))
        mine = [j for j in self.ready if j.key == key]
        self.promoted = False
        return self.take(min(mine, key=lambda j: (rank(j, now), j.id)))

    def take(self, job: Waiting) -> Waiting:
        self.ready.remove(job)
        self.taken_in[job.id] = self.rounds
        key = job.key
        self.last = key
        self.credit[key] = max(0, self.credit.get(key, 0) - 1)
        self.in_flight[key] = self.in_flight.get(key, 0) + 1
        self.forget_if_empty(key)
        return job

    def forget_if_empty(self, key: str) -> None:
        if not any(j.key == key for j in self.ready):
            self.credit.pop(key, None)

    def end(self, id: int, key: str, now: int, cost: int | None) -> None:
        self.in_flight[key] -= 1

    def give_back(self, job: Waiting, now: int) -> None:
        self.in_flight[job.key] -= 1
        self.ready.append(job)
        if self.taken_in[job.id] == self.rounds:
            self.credit[job.key] = self.credit.get(job.key, 0) + 1


@dataclass
class CostModel(Model):
    """The rule where a pick costs what its job does: in millionths, with debts and corrections."""

    charged: dict[int, int] = field(default_factory=dict)
    idle_since: dict[str, int] = field(default_factory=dict)

    def job(self, key: str, detail: Any) -> NewJob:
        return NewJob(0, tenant_id=key, cost=detail)

    def full(self, key: str) -> int:
        return super().full(key) * MILLION

    def charge(self, cost: int) -> int:
        return max(cost, self.quantum * MILLION // 100)

    def pick(self, now: int) -> Waiting | None:
        keys = self.rotation()
        if not keys:
            return None
        old = min((j for j in self.ready if j.key in keys), key=lambda j: (j.at, j.key, j.id))
        is_old = self.starvation and now - old.at >= self.starvation
        if is_old and not (self.promoted and len(keys) > 1):
            self.promoted = True
            self.promotions += 1
            return self.take(old)
        while all(self.credit.get(k, 0) <= 0 for k in keys):
            self.rounds += 1
            for k in keys:
                had, full = self.credit.get(k, 0), self.full(k)
                self.credit[k] = max(had, min(full, had + full))
        key = next(k for k in keys if self.credit.get(k, 0) > 0)
        mine = [j for j in self.ready if j.key == key]
        self.promoted = False
        return self.take(min(mine, key=lambda j: (rank(j, now), j.id)))

    def take(self, job: Waiting) -> Waiting:
        self.ready.remove(job)
        self.last = job.key
        self.charged[job.id] = self.charge(self.costs[job.id])
        self.credit[job.key] = self.credit.get(job.key, 0) - self.charged[job.id]
        self.in_flight[job.key] = self.in_flight.get(job.key, 0) + 1
        if not self.has_ready(job.key):
            self.credit[job.key] = min(0, self.credit[job.key])
        return job

    def has_ready(self, key: str) -> bool:
        return any(j.key == key for j in self.ready)

    def enter(self, job: Waiting, now: int) -> None:
        """Make *job* ready: its key brings no credit, and a debt unless it was idle for long."""
        if not self.has_ready(job.key):
            idle = now - self.idle_since.get(job.key, now)
            self.credit[job.key] = 0 if idle >= 60_000 else min(0, self.credit.get(job.key, 0))
        self.idle_since.pop(job.key, None)
        self.ready.append(job)

    def end(self, id: int, key: str, now: int, cost: int | None) -> None:
        """Settle a job; its key pays *cost* instead of what it was charged."""
        self.in_flight[key] -= 1
        if not self.in_flight[key] and not self.has_ready(key):
            self.idle_since[key] = now
        if cost is not None:
            self.credit[key] += self.charged[id] - self.charge(cost)

    def wake(self, job: Waiting, now: int) -> None:
        """End the claim of a job that is ready again; what it was charged stays."""
        self.in_flight[job.key] -= 1
        self.enter(job, now)

    def give_back(self, job: Waiting, now: int) -> None:
        """Release a job: it is ready again, and its key has paid nothing."""
        self.in_flight[job.key] -= 1
        self.enter(job, now)
        self.credit[job.key] += self.charged[job.id]
