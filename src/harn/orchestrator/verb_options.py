"""The options that all verbs share, and how a verb reports its progress."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

Tell = Callable[[str], None]
"""Receives a line of progress."""


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a verb: the names in its path and the fields of its body."""
