"""Colours where they carry meaning: red for what failed, yellow for what waits on a decision.

Commands write marks into their text; `painted` turns them into a terminal's codes, or drops them
in a pipe, on a dumb terminal and with NO_COLOR. A mark is a noncharacter of Unicode: no text
that passed through `one_line` or `to_json` contains one, so only commands can set it.
"""

from __future__ import annotations

import re
from typing import TextIO

from harn.escaping import on_lines
from harn.settings import has_dumb_terminal, wants_colours

BOLD, DIM, RED, GREEN, YELLOW = "\ufdd1", "\ufdd2", "\ufdd3", "\ufdd4", "\ufdd5"
_END = "\ufdd0"
_CODES = {_END: "0", BOLD: "1", DIM: "2", RED: "31", GREEN: "32", YELLOW: "33"}
_MARK = re.compile(f"([{''.join(_CODES)}])")

_WORDS = {
    **dict.fromkeys(("ok", "acked", "dispatched", "completed"), GREEN),
    **dict.fromkeys(("warn", "warning", "scheduled", "paused", "cancelled", "purged"), YELLOW),
    **dict.fromkeys(("error", "fail", "failed", "dead", "dlq", "damaged", "lost"), RED),
}
_COUNTS = {"dead": RED, "failed": RED, "drops": RED, "dead letters": RED}
_TEXTS = {"error": RED, "paused": YELLOW, "paused until": YELLOW, "note": YELLOW}


def colour(mark: str, text: str) -> str:
    """Return *text* in a colour, whose mark it is given."""
    return f"{mark}{text}{_END}" if mark and text else text


def by_word(word: str) -> str:
    r"""Return a status word in the colour of its meaning.

    >>> painted(by_word("dead"), True), painted(by_word("dead"), False)
    ('\x1b[31mdead\x1b[0m', 'dead')
    """
    return colour(_WORDS.get(word, ""), word)


def mark_of(heading: str, value: object) -> str:
    """Return the mark of a table's cell: failures above zero, errors, pauses, status words."""
    if heading == "status":
        return _WORDS.get(str(value), "")
    if isinstance(value, int | float):
        return _COUNTS.get(heading, "") if value else ""
    return _TEXTS.get(heading, "") if value not in (None, "", "-") else ""


def has_colours(stream: TextIO) -> bool:
    """Tell whether colours may be written to *stream*."""
    return stream.isatty() and wants_colours() and not has_dumb_terminal()


def plain(text: str) -> str:
    """Return *text* without marks."""
    return _MARK.sub("", text)


def painted(text: str, on: bool) -> str:
    """Return *text* with a terminal's codes for its marks, and every other control escaped."""
    pieces = _MARK.split(text)
    return "".join(
        on_lines(piece) if piece not in _CODES else f"\x1b[{_CODES[piece]}m" if on else ""
        for piece in pieces
    )
