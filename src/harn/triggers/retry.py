"""How often and when a failed dispatch is tried again, and the class of its error. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from harn.duration import to_seconds, to_text
from harn.errors import InvalidOption, did_you_mean
from harn.option_checks import whole_number

Backoff = Literal["immediate", "svix", "linear", "exponential"]

SVIX = (0.0, 5.0, 300.0, 1800.0, 7200.0, 18_000.0, 36_000.0)
"""Seconds before each attempt; the last one repeats."""
DEFAULT_ATTEMPTS = 7
MOST_ATTEMPTS = 100
LONGEST = 36_000.0
"""The longest delay, in seconds, of `linear` and `exponential`."""


class Retry(msgspec.Struct, frozen=True):
    """At most *max* attempts, each after the delay that *backoff* defines.

    `linear` waits *delay* before each further attempt; `exponential` doubles it each time. The
    trigger's dedupe keys are remembered for *retention_days*.
    """

    max: int = DEFAULT_ATTEMPTS
    backoff: Backoff = "svix"
    delay: float = 1.0
    retention_days: int = 7

    def before(self, attempt: int) -> float:
        """Return the seconds to wait before *attempt*, which counts from 1.

        >>> [Retry(backoff="svix").before(n) for n in (1, 2, 3, 9)]
        [0.0, 5.0, 300.0, 36000.0]
        """
        if attempt <= 1 or self.backoff == "immediate":
            return 0.0
        if self.backoff == "svix":
            return SVIX[min(attempt, len(SVIX)) - 1]
        if self.backoff == "linear":
            return min(self.delay, LONGEST)
        # An exponent of 60 exceeds any cap already; a much larger one would overflow a float.
        return float(min(self.delay * 2.0 ** min(attempt - 2, 60), LONGEST))

    def as_dict(self) -> dict[str, Any]:
        """Return the policy, JSON-ready."""
        shown: dict[str, Any] = {"max": self.max, "backoff": self.backoff}
        if self.backoff in ("linear", "exponential"):
            shown["delay"] = to_text(self.delay)
        shown["retention_days"] = self.retention_days
        return shown


BY_HAND = Retry(backoff="svix")
"""The default of `trigger_register`."""
FROM_MANIFEST = Retry(backoff="immediate")
"""The default of a manifest's trigger."""


def check_retry(value: Any, default: Retry) -> Retry:
    """Read *value* as the user gave it; None means *default*, and a `max` of 0 the default max."""
    if value is None:
        return default
    if isinstance(value, Retry):
        return value
    if not isinstance(value, Mapping):
        raise InvalidOption("retry", value, 'a mapping such as {"max": 5, "backoff": "svix"}')
    known = ("max", "backoff", "delay", "retention_days")
    for key in value:
        if key not in known:
            raise InvalidOption(
                f"retry.{key}", value[key], f"no such key{did_you_mean(key, known)}"
            )
    backoff = value.get("backoff", default.backoff)
    if backoff not in get_args(Backoff):
        near = did_you_mean(backoff, get_args(Backoff)) if isinstance(backoff, str) else ""
        raise InvalidOption(
            "retry.backoff", backoff, f'"immediate", "svix", "linear" or "exponential"{near}'
        )
    attempts = whole_number("retry.max", value.get("max", 0), least=0, most=MOST_ATTEMPTS)
    return Retry(
        max=attempts or DEFAULT_ATTEMPTS,
        backoff=backoff,
        delay=to_seconds(value.get("delay", 1.0), "retry.delay"),
        retention_days=whole_number(
            "retry.retention_days", value.get("retention_days", 7), least=1, most=3650
        ),
    )


ErrorClass = Literal[
    "budget_exhausted",
    "handler_timeout",
    "auth_failed",
    "provider_5xx",
    "predicate_panic",
    "handler_panic",
    "unknown",
]

_CLASSES: tuple[tuple[ErrorClass, str], ...] = (
    ("budget_exhausted", r"budget.*(exhaust|exceed|spent)|(exhaust|exceed).*budget"),
    ("handler_timeout", r"timeout|timed out|deadline"),
    ("auth_failed", r"\b(401|403)\b|forbidden|unauthori[sz]ed|authentication"),
    ("provider_5xx", r"provider.*\b5\d\d\b|\b5\d\d\b.*provider|answered 5\d\d\b"),
    ("predicate_panic", r"predicate.*(panic|thrown|raised)"),
    ("handler_panic", r"handler.*(panic|thrown|raised)"),
)
_LOOKED_AT = 2000


def error_class(message: str) -> ErrorClass:
    """Return the class of an error; operators filter by it.

    >>> error_class("a2a://peer answered 503"), error_class("handler raised KeyError: 'x'")
    ('provider_5xx', 'handler_panic')
    """
    text = message[:_LOOKED_AT].lower()
    for name, pattern in _CLASSES:
        if re.search(pattern, text):
            return name
    return "unknown"
