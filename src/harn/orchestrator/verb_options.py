"""What every verb for operators is told, and how it tells its progress."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Tell = Callable[[str], None]
"""Takes a line that says how far a verb is."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a verb is told: the names in its path, and the fields of its body."""
