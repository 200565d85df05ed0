"""The error for a name that nothing has."""

from __future__ import annotations

from harn.errors import TriggerError


class NotFound(TriggerError):
    """No trigger, event or dead letter has this name now."""
