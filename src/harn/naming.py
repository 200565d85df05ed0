"""Rules for names, and how several names become one key.

A *name* is chosen by the people who run a system: a queue, a pool, a mailbox. It is never
changed; one that could be mistaken for another on a screen is refused. A tenant or a key is
*data*: it is stored and compared exactly as given.
"""

from __future__ import annotations

import unicodedata

from harn.errors import InvalidOption

MAX_NAME = 1024

_CONTROLS = frozenset({"Cc", "Cs", "Zl", "Zp"})
_DIRECTIONS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def has_controls(text: str) -> bool:
    r"""Tell whether *text* holds a control character.

    That is C0, DEL, C1, a line or paragraph separator, a mark of writing direction or a lone
    surrogate.

    >>> has_controls("crème brûlée"), has_controls("a\x9bb"), has_controls("a\u202eb")
    (False, True, True)
    """
    if text.isprintable():
        return False
    return any(each in _DIRECTIONS or unicodedata.category(each) in _CONTROLS for each in text)


def check_name(option: str, value: object, most: int = MAX_NAME) -> str:
    """Return *value* if it may be a name: text without blanks around it and without controls.

    >>> check_name("name", "web hooks")
    'web hooks'
    """
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(option, value, "a non-empty string")
    if len(value) > most:
        raise InvalidOption(option, value, f"at most {most} characters")
    if value != value.strip():
        raise InvalidOption(option, value, "a name without white space at its ends")
    if has_controls(value):
        raise InvalidOption(option, value, "a name without control characters")
    return value


def check_printable_name(option: str, value: object, most: int) -> str:
    """Return *value* if it may be a name and is short and printable, the same on every store.

    >>> check_printable_name("queue", "web hooks", 128)
    'web hooks'
    """
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise InvalidOption(option, value, f"1 to {most} printable characters")
    if not value.isprintable() or not value.strip():
        raise InvalidOption(option, value, f"1 to {most} printable characters")
    return check_name(option, value)


def check_data(option: str, value: object, most: int | None = None) -> str:
    """Return *value*, a tenant or a key, if every store can hold it unchanged."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(option, value, "a non-empty string")
    if most is not None and len(value) > most:
        raise InvalidOption(option, value, f"at most {most} characters")
    if has_controls(value):
        raise InvalidOption(option, value, "text without control characters")
    return value


def joined(*parts: str) -> str:
    """Return one key for *parts*; other parts, or other borders between them, give another key.

    Parts without `:` and `%` stand for themselves.

    >>> joined("hook", "acme", "review"), joined("a:b", "c"), joined("a", "b:c")
    ('hook:acme:review', 'a%3Ab:c', 'a:b%3Ac')
    """
    return ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts)
