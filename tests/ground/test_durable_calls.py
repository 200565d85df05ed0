"""The registry of durable functions, and their calls as data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from harn import HarnError, InvalidOption, durable, durable_calls
from harn.durable_calls import (
    DurableCall,
    durable_function,
    durable_function_named,
    encode_arguments,
    split_call,
)


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(durable_calls, "_by_name", {})
    monkeypatch.setattr(durable_calls, "_by_function", {})
    yield


def total(*numbers: int, start: int = 0) -> int:
    return sum(numbers, start)


def test_a_function_is_registered_under_its_module_and_name() -> None:
    assert durable(total) is total

    found = durable_function_named(f"{__name__}:total")
    assert found is not None
    assert found is durable_function(total)
    assert (found.fn, found.rerun) == (total, False)


def test_a_call_comes_back_from_its_data() -> None:
    durable(name="sums")(total)
    fn, positional, keywords = split_call(partial(total, 1, 2, start=10))
    function, arguments = durable_function(fn), encode_arguments(positional, keywords)
    assert function is not None and arguments is not None

    assert DurableCall(function, arguments).closure()() == 13


def test_a_function_without_arguments_is_a_call_too() -> None:
    assert split_call(total) == (total, (), {})
    assert encode_arguments((), {}) == b"[[],{}]"


def test_arguments_that_json_would_change_are_not_encoded() -> None:
    assert encode_arguments([(1, 2)], {}) is None
    assert encode_arguments([], {"at": {1: "x"}}) is None


def test_a_name_belongs_to_one_function() -> None:
    durable(name="sums")(total)

    with pytest.raises(InvalidOption, match=f"{__name__}:total"):
        durable(name="sums")(len)


def test_a_module_that_is_loaded_again_replaces_its_functions() -> None:
    def reloaded(*numbers: int) -> int:
        return 0

    reloaded.__qualname__ = "total"
    durable(total)

    durable(reloaded)

    found = durable_function_named(f"{__name__}:total")
    assert found is not None and found.fn is reloaded


@pytest.mark.parametrize(
    ("register", "option"),
    [
        (lambda: durable(lambda: None), "fn"),
        (lambda: durable(name="")(total), "name"),
        (lambda: durable(name="a\x00b")(total), "name"),
        (lambda: durable(name="a\ud800")(total), "name"),
        (lambda: durable(name=3)(total), "name"),  # type: ignore[call-overload]
        (lambda: durable(rerun=1)(total), "rerun"),  # type: ignore[call-overload]
        (lambda: durable(7), "fn"),  # type: ignore[call-overload]
    ],
)
def test_what_cannot_be_registered_is_refused(register: Any, option: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        register()

    assert refused.value.option == option


def test_what_is_not_registered_is_not_found() -> None:
    assert durable_function(total) is None
    assert durable_function([]) is None  # type: ignore[arg-type] # cannot be hashed
    assert durable_function_named("nothing") is None


class SeveralErrors(Exception):
    """An error of another library that has `errors`, too, and no text."""

    errors = ("too small",)

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Checked(BaseModel):
    n: int

    @field_validator("n")
    @classmethod
    def check(cls, n: int) -> int:
        raise SeveralErrors


async def test_a_call_whose_arguments_any_error_refuses_does_not_fit() -> None:
    async def bill(order: Checked) -> None: ...

    bill.__annotations__["order"] = Checked
    found = durable_function(durable(name="tests:bill")(bill))
    assert found is not None

    with pytest.raises(HarnError, match=r"do not fit tests:bill: \(its message cannot"):
        DurableCall(found, b'[[{"n":1}],{}]').closure()
