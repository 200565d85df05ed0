"""The verbs about the service itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from harn.masking import mask
from harn.orchestrator.verb_options import Options, Tell

if TYPE_CHECKING:
    from harn.orchestrator.service import Service


async def about(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """Tell which service this is."""
    return {
        "pid": os.getpid(),
        "manifest": None if service.path is None else str(service.path.resolve()),
        "state_dir": str(service.runtime.state_dir.resolve()),
        "storage": mask(service.runtime.storage_url),
    }


async def reload(service: Service, options: Options, tell: Tell) -> dict[str, Any]:
    """Read the manifest again. A cancel changes nothing, but a new setup may have run."""
    return await service.reload()
