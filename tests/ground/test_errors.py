from __future__ import annotations

import pickle

import pytest

from harn import errors
from harn.errors import DeadlineExceeded, HarnError, InvalidOption, PoolFull, RaceFailed


def test_a_code_belongs_to_its_class_and_opens_the_message() -> None:
    assert PoolFull.code == "HARN-POL-001"
    assert str(PoolFull("pool 'review' is full")) == "HARN-POL-001: pool 'review' is full"
    assert HarnError.code is None


def test_codes_are_unique() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    own = [each.__dict__["code"] for each in classes if each.__dict__.get("code")]

    assert sorted(own) == ["HARN-ORC-011", "HARN-ORC-012", "HARN-POL-001", "HARN-POL-002"]


def test_some_are_also_pythons_own() -> None:
    assert issubclass(InvalidOption, ValueError)
    assert issubclass(DeadlineExceeded, TimeoutError)


@pytest.mark.parametrize(
    "error",
    [
        InvalidOption("priority", object(), "an int"),
        RaceFailed("all 2 failed", [ValueError("a"), "b"]),
        PoolFull("full"),
    ],
)
def test_an_error_survives_the_way_to_another_process(error: HarnError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert copy.code == error.code
    assert set(vars(copy)) == set(vars(error))


def test_a_huge_value_does_not_make_a_huge_message() -> None:
    assert len(str(InvalidOption("payload", "x" * 10_000, "less"))) < 300


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("value", [10**5000, [-(10**5000)], Shy()], ids=["int", "list", "shy"])
def test_a_value_that_cannot_be_shown_is_refused_like_any_other(value: object) -> None:
    refused = InvalidOption("max_concurrent", value, "an int")

    assert str(refused).endswith("which cannot be shown> is not accepted: an int")
    assert type(pickle.loads(pickle.dumps(refused))) is InvalidOption


def test_a_near_miss_is_suggested() -> None:
    assert errors.did_you_mean("prioritty", ["priority", "key"]) == "; did you mean 'priority'?"
    assert errors.did_you_mean("zebra", ["priority", "key"]) == ""
