"""The verb that fires a trigger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harn.errors import did_you_mean
from harn.orchestrator.caused_work import Finishing
from harn.orchestrator.verb_options import Fire, Tell
from harn.pools import causing
from harn.triggers import NotFound

if TYPE_CHECKING:
    from harn.orchestrator.service import Service


async def fire(service: Service, options: Fire, tell: Tell) -> dict[str, Any]:
    """Fire a trigger; wait for the pool tasks it causes. Cancelling may leave it fired."""
    triggers, manifest = service.triggers, service.manifest
    if triggers.find(options.trigger) is None:
        known = [*(each.id for each in manifest.triggers), *(t.id for t in triggers.active())]
        near = did_you_mean(options.trigger, known)
        raise NotFound(f"{manifest.path.name} has no trigger {options.trigger!r}{near}")
    found = manifest.trigger(options.trigger)
    fields: dict[str, Any] = {"headers": {"x-harn-synthetic": "true"}}
    if tenant := options.tenant or (found.tenant_id if found is not None else None):
        fields["tenant_id"] = tenant
    with causing() as caused:
        handle = await triggers.fire(options.trigger, options.payload, **fields)
    done = await Finishing(service.runtime, options.work_within, tell)(caused)
    return {**handle.as_dict(), "work": done.as_dict()}
