"""Pieces of SQL that several statements share, written once and expanded when they are loaded.

A fragment stands in an SQL file beside the statements, under a line that names its parameters:

    -- fragment: first_turn(ready, round)
    -- Return the turn of a new share: the next round, if it has ready jobs.
    CASE WHEN {ready} > 0 THEN {round} + 1 END

A statement of any file uses it as `@first_turn(v.ready, v.round)`. Each argument replaces its
parameter as it stands, without parentheses around it. A fragment may use others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

_USE = re.compile(r"@(\w+)\(((?:[^()]|\([^()]*\))*)\)")
_COMMA = re.compile(r",\s*(?![^(]*\))")  # not one inside the parentheses of an argument
_PARAMETER = re.compile(r"\{(\w+)\}")


class Fragment(msgspec.Struct, frozen=True):
    """A piece of SQL with the names of its parameters, in the order of a use's arguments."""

    parameters: tuple[str, ...]
    text: str


def expand(text: str, fragments: Mapping[str, Fragment]) -> str:
    """Return *text* with each use of a fragment replaced by what it stands for."""

    def expanded(use: re.Match[str]) -> str:
        fragment = fragments[use[1]]
        arguments = _COMMA.split(use[2].strip())
        values = dict(zip(fragment.parameters, arguments, strict=True))
        text = expand(fragment.text, fragments)
        return _PARAMETER.sub(lambda name: values[name[1]], text)

    return _USE.sub(expanded, text)
