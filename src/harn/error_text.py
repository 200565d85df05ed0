"""The text of an error or a value for a record or a log line: always text, and never too long."""

from __future__ import annotations

LONGEST = 10_000
"""The most characters of a message that are kept."""
NOT_SHOWN = "(its message cannot be shown)"


def error_text(error: BaseException, longest: int = LONGEST) -> str:
    """Return `Type: message`, or only the type if there is no message.

    At most *longest* characters are returned.

    >>> error_text(KeyError("tenant"))
    "KeyError: 'tenant'"
    >>> error_text(TimeoutError())
    'TimeoutError'
    """
    name, message = type(error).__name__, message_of(error, longest)
    return (f"{name}: {message}" if message else name)[:longest]


def message_of(value: object, longest: int = LONGEST) -> str:
    """Return `str(value)`, cut to *longest* characters, of which UTF-8 can encode each.

    A `__str__` that raises must not hide the failure that is reported.
    """
    try:
        text = str(value)
    except BaseException:  # also one that raises SystemExit: the task that failed is settled
        return NOT_SHOWN
    return text[:longest].encode("utf-8", "replace").decode()


def repr_of(value: object, longest: int) -> str:
    """Return `repr(value)`, cut to *longest* characters, of which UTF-8 can encode each.

    >>> repr_of(["a" * 10], 9)
    "['aaaa..."
    """
    try:
        text = repr(value)
    except Exception:  # an int of too many digits, or a repr that raises
        return f"<{type(value).__name__}, which cannot be shown>"
    text = text if len(text) <= longest else f"{text[: longest - 3]}..."
    return text.encode("utf-8", "replace").decode()
