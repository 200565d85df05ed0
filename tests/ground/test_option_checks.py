"""Whole numbers and words are checked in one way, in one place."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import harn
from harn.errors import InvalidOption
from harn.option_checks import is_number, is_whole, one_of, read_whole, whole_number


@pytest.mark.parametrize("value", [0, -1, 2**70])
def test_an_int_is_a_whole_number(value: int) -> None:
    assert is_whole(value)
    assert is_number(value)
    assert whole_number("n", value) == value


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, float("nan")])
def test_nothing_else_is_one(value: Any) -> None:
    assert not is_whole(value)

    with pytest.raises(InvalidOption, match=r"a whole number$"):
        whole_number("n", value)


def test_a_bool_is_no_number_and_a_float_is() -> None:
    assert is_number(0.5)
    assert not is_number(True)


@pytest.mark.parametrize("value", [pytest.param(10**400, id="huge"), float("inf"), float("nan")])
def test_what_no_float_holds_as_a_number_is_none(value: Any) -> None:
    assert not is_number(value)


@pytest.mark.parametrize(
    ("least", "most", "value", "says"),
    [
        (1, None, 0, "a whole number of at least 1$"),
        (None, 1000, 1001, "a whole number of at most 1,000$"),
        (1, 1000, 0, "a whole number from 1 to 1,000$"),
        (1, 1000, 1001, "a whole number from 1 to 1,000$"),
    ],
)
def test_the_error_names_the_limits(
    least: int | None, most: int | None, value: int, says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        whole_number("n", value, least=least, most=most)


def test_the_limits_themselves_are_accepted() -> None:
    assert whole_number("n", 1, least=1, most=3) == 1
    assert whole_number("n", 3, least=1, most=3) == 3


def test_an_option_may_say_what_it_accepts_in_its_own_words() -> None:
    with pytest.raises(InvalidOption, match="0 means forever"):
        whole_number("n", -1, least=0, wanted="a whole number; 0 means forever")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("reed", "one of read, write; did you mean 'read'\\?$"),
        ("", "one of read, write$"),
        (["read"], "one of read, write$"),
        (None, "one of read, write$"),
    ],
)
def test_a_word_is_one_of_those_that_are_known(value: Any, says: str) -> None:
    assert one_of("mode", "read", ("read", "write")) == "read"

    with pytest.raises(InvalidOption, match=says):
        one_of("mode", value, ("read", "write"))


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1 ", "1_0", "1.0", "\u0663", "\u00b2"])
def test_a_text_with_anything_but_digits_is_no_whole_number(text: str) -> None:
    assert read_whole(text) is None


def test_a_text_of_too_many_digits_is_no_whole_number() -> None:
    assert read_whole("9" * 16) == 10**16 - 1
    assert read_whole("0" * 17) is None
    assert read_whole("0" * 17, digits=17) == 0


def own_checks(tree: ast.AST) -> list[int]:
    """The lines that ask for bool and for int together, as a check of a whole number does."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.BoolOp):
            text = ast.unparse(node)
            if ", bool)" in text and re.search(r", int( \| float)?\)", text):
                found.append(node.lineno)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "if isinstance(n, bool) or not isinstance(n, int) or n < 1: raise ValueError",
        "def f(n): return isinstance(n, int) and not isinstance(n, bool)",
        "def f(n): return isinstance(n, int | float) and not isinstance(n, bool)",
    ],
)
def test_a_check_of_ones_own_is_found(text: str) -> None:
    assert own_checks(ast.parse(text)) == [1]


def test_no_room_checks_numbers_by_itself() -> None:
    source = Path(harn.__file__).parent

    found = {
        str(path.relative_to(source)): lines
        for path in source.rglob("*.py")
        if (lines := own_checks(ast.parse(path.read_text())))
    }

    assert list(found) == ["option_checks.py"]


def test_no_room_looks_for_digits_by_itself() -> None:
    source = Path(harn.__file__).parent

    found = [
        str(path.relative_to(source))
        for path in source.rglob("*.py")
        if re.search(r"\.is(digit|decimal|numeric)\(", path.read_text())
    ]

    assert found == ["option_checks.py"]
