"""The text of an error: always there, never too long, in characters that a record can hold."""

from __future__ import annotations

import pytest

from harn.error_text import LONGEST, NOT_SHOWN, error_text, message_of, repr_of


class Unshowable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message for you")


class Exiting(Exception):
    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("boom"), "ValueError: boom"),
        (ValueError(), "ValueError"),
        (SystemExit(3), "SystemExit: 3"),
        (Unshowable(), f"Unshowable: {NOT_SHOWN}"),
        (Exiting(), f"Exiting: {NOT_SHOWN}"),
        (ValueError("a\ud800b"), "ValueError: a?b"),
    ],
    ids=["message", "none", "exit", "unshowable", "exiting", "surrogate"],
)
def test_an_error_is_its_type_and_its_message(error: BaseException, text: str) -> None:
    assert error_text(error) == text


def test_a_long_message_is_cut() -> None:
    assert len(error_text(ValueError("x" * 100_000))) == LONGEST
    assert error_text(ValueError("x" * 100), 20) == "ValueError: xxxxxxxx"
    assert message_of("x" * 100_000) == "x" * LONGEST


class Unprintable:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def __repr__(self) -> str:
        if self.text is None:
            raise RuntimeError("no repr for you")
        return self.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        ("a\ud800b", "'a\\ud800b'"),
        (Unprintable("a\ud800b"), "a?b"),
        (Unprintable(None), "<Unprintable, which cannot be shown>"),
        ("x" * 100, f"'{'x' * 36}..."),
    ],
    ids=["number", "text", "surrogate", "unshowable", "long"],
)
def test_a_value_is_its_repr_as_far_as_a_record_can_hold_it(value: object, text: str) -> None:
    assert repr_of(value, 40) == text
