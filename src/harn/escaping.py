r"""Making text from outside safe to show: it cannot control a terminal or fake a line.

Every character that is not printable is written as an escape: C0, DEL and C1 controls, line
separators, marks of writing direction, lone surrogates. All that harn prints, logs and exports is
escaped here.
"""

from __future__ import annotations

import json
import re
from typing import Any

_MAYBE = re.compile(r"[^\x20-\x7e]")
"""Characters that may need an escape: every other one is printable."""


def one_line(text: str) -> str:
    r"""Return *text* on one line; every character that is not printable is escaped.

    >>> one_line("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    return _MAYBE.sub(_spelled_out, text)


def on_lines(text: str) -> str:
    r"""Return *text* with its line ends; every other character that is not printable is escaped.

    >>> on_lines("a\nb\x9b2J")
    'a\nb\\x9b2J'
    """
    return _MAYBE.sub(lambda found: "\n" if found[0] == "\n" else _spelled_out(found), text)


def to_json(value: Any, indent: int | None = None) -> str:
    r"""Write *value* as JSON in which everything that is not printable is a `\u` escape.

    >>> to_json({"name": "caf\u00e9\x9b\u202e"})
    '{"name": "café\\u009b\\u202e"}'
    """
    return in_json(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def in_json(text: str) -> str:
    r"""Return *text*, a JSON document, with a `\u` escape for all that is not printable.

    Outside its strings, JSON holds nothing to escape but line ends, which stay.

    >>> in_json('["\u2028"]')
    '["\\u2028"]'
    """
    return _MAYBE.sub(_json_escape, text)


def _spelled_out(found: re.Match[str]) -> str:
    each = found[0]
    return each if each.isprintable() else each.encode("unicode_escape").decode()


def _json_escape(found: re.Match[str]) -> str:
    each = found[0]
    if each == "\n" or each.isprintable():
        return each
    units = each.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
