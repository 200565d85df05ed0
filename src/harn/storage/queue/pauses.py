"""The pauses of a queue: of the whole queue, or of some tenants.

Claims on a paused queue find nothing; the pause is stored in the queue's row. The jobs of a paused
tenant are *parked*: they are not among the ready ones, so claims never read past them. The jobs
that are ready when the pause begins are parked a batch at a time, and are made ready the same way
when it ends. A pause or a resumption that was interrupted continues with the next claim.
"""

from __future__ import annotations

from typing import Any

import msgspec

from harn.storage.queue.job_records import PARKED, READY

Progress = tuple[int, int]
"""Ready jobs are parked by priority, then by id: a priority, and the id of the last one parked."""


class StoredPause(msgspec.Struct, omit_defaults=True):
    """One pause: of a queue, or of a tenant."""

    at: int
    reason: str | None = None
    parking: Progress | None = None
    """Of a tenant: how far its ready jobs have been parked; None when all are."""
    is_ending: bool = False
    """Whether parked jobs are being made ready again."""


class Pauses(msgspec.Struct, omit_defaults=True):
    """Everything that is paused in one queue."""

    queue: StoredPause | None = None
    tenants: dict[str, StoredPause] = {}

    def state_of_ready(self, tenant_id: str | None) -> int:
        """Return the state of a ready job of *tenant_id*: PARKED while the tenant is paused."""
        pause = self.tenants.get(tenant_id) if tenant_id is not None else None
        return READY if pause is None or pause.is_ending else PARKED

    @property
    def unfinished(self) -> list[str]:
        """The tenants whose jobs are still being parked or made ready."""
        return [
            tenant
            for tenant, pause in self.tenants.items()
            if pause.parking is not None or pause.is_ending
        ]

    @property
    def since(self) -> int | None:
        """When the oldest pause began."""
        begun = [pause.at for pause in (self.queue, *self.tenants.values()) if pause is not None]
        return min(begun, default=None)

    @property
    def held(self) -> dict[str, StoredPause]:
        """The tenants that are paused now."""
        return {name: pause for name, pause in self.tenants.items() if not pause.is_ending}


_decoder = msgspec.json.Decoder(Pauses)


def read_pauses(stored: Any) -> Pauses:
    """Read the pauses in a queue's row; None is no pause."""
    return Pauses() if stored is None else _decoder.decode(stored)


def written(pauses: Pauses) -> str | None:
    """Write *pauses* for a queue's row."""
    if pauses.queue is None and not pauses.tenants:
        return None
    return msgspec.json.encode(pauses).decode()
