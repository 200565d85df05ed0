"""How long a failed job waits, decided: tables, limits, what cannot be set."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from harn import Bury, GiveBack, InvalidOption, RetryLater, RetryPolicy, durable
from harn.retry_policy import delay_after, gives_up_on
from harn.workers.after_failure import FailAttempt, Release, after_error


@pytest.mark.parametrize(
    ("policy", "attempt", "random", "delay"),
    [
        (RetryPolicy(), 1, 0.5, 1.0),
        (RetryPolicy(), 2, 0.5, 2.0),
        (RetryPolicy(), 9, 0.5, 256.0),
        (RetryPolicy(), 10, 0.5, 300.0),
        (RetryPolicy(), 1, 0.0, 0.9),
        (RetryPolicy(), 1, 1.0, 1.1),
        (RetryPolicy(), 40, 1.0, 330.0),  # the jitter comes after the cap
        (RetryPolicy(jitter=0), 3, 0.1, 4.0),
        (RetryPolicy(jitter=1), 3, 0.0, 0.0),
        (RetryPolicy(factor=1), 50, 0.5, 1.0),
        (RetryPolicy(factor=3, backoff="2s"), 3, 0.5, 18.0),
        (RetryPolicy(backoff=timedelta(minutes=1)), 1, 0.5, 60.0),
        (RetryPolicy(backoff="10m"), 1, 0.5, 300.0),  # the cap holds for the first wait too
        (RetryPolicy(backoff=0), 7, 0.5, 0.0),
        (RetryPolicy(backoff=0), 1_000_000, 0.5, 0.0),
        (RetryPolicy(), 1_000_000, 0.5, 300.0),
        (RetryPolicy(factor=1e300), 3, 0.5, 300.0),
    ],
)
def test_the_wait_grows_and_is_capped_and_jittered(
    policy: RetryPolicy, attempt: int, random: float, delay: float
) -> None:
    assert delay_after(attempt, policy, random) == pytest.approx(delay)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"backoff": -1}, "backoff"),
        ({"backoff": "soon"}, "backoff"),
        ({"max_backoff": True}, "max_backoff"),
        ({"factor": 0.5}, "factor"),
        ({"factor": float("inf")}, "factor"),
        ({"factor": 10**400}, "factor"),
        ({"factor": True}, "factor"),
        ({"jitter": 1.5}, "jitter"),
        ({"jitter": float("nan")}, "jitter"),
        ({"jitter": "0.1"}, "jitter"),
        ({"give_up_on": ("ValueError",)}, "give_up_on"),
        ({"give_up_on": (int,)}, "give_up_on"),
        ({"give_up_on": None}, "give_up_on"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        RetryPolicy(**options)

    assert refused.value.option == option


@pytest.mark.parametrize(
    ("options", "option"),
    [({"retry": 3}, "retry"), ({"timeout": 0}, "timeout"), ({"timeout": "soon"}, "timeout")],
)
def test_a_durable_function_refuses_them_too(options: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        durable(name="tests:refused", **options)

    assert refused.value.option == option


def test_subclasses_are_given_up_on_too() -> None:
    policy = RetryPolicy(give_up_on=(LookupError,))

    assert gives_up_on(policy, KeyError("x"))
    assert not gives_up_on(policy, ValueError("x"))
    assert RetryPolicy(give_up_on=KeyError).give_up_on == (KeyError,)  # type: ignore[arg-type]
    assert not gives_up_on(RetryPolicy(), KeyError("x"))


POLICY = RetryPolicy(jitter=0, give_up_on=(KeyError,))


@pytest.mark.parametrize(
    ("error", "policy", "delay_ms", "final"),
    [
        (ValueError("x"), None, None, False),
        (ValueError("x"), POLICY, 4000, False),
        (KeyError("x"), POLICY, None, True),
        (KeyError("x"), None, None, False),
        (TimeoutError(), POLICY, 4000, False),
        (RetryLater("5s"), POLICY, 5000, False),
        (RetryLater(0), None, 0, False),
        (Bury("enough"), POLICY, None, True),
    ],
)
def test_what_follows_a_failed_attempt(
    error: BaseException, policy: RetryPolicy | None, delay_ms: int | None, final: bool
) -> None:
    what = after_error(error, 3, policy, 0.5)

    assert isinstance(what, FailAttempt)
    assert (what.delay_ms, what.final) == (delay_ms, final)


def test_a_job_that_is_given_back_has_not_failed() -> None:
    assert after_error(GiveBack("3s"), 1, POLICY, 0.5) == Release(3000, None)
    assert after_error(GiveBack(), 1, None, 0.5) == Release(0, None)
