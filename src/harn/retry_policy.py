"""How long a failed job waits before its next attempt, and which errors make it dead at once."""

from __future__ import annotations

from dataclasses import dataclass

from harn.duration import Duration, to_seconds
from harn.errors import InvalidOption
from harn.option_checks import is_number


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed job is tried again.

    After attempt n it waits `backoff * factor**(n-1)`, at most *max_backoff*, plus or minus up to
    that times *jitter* (0 to 1). An error of a class in *give_up_on* makes the job dead at once.
    How many attempts there are is the job's own `max_attempts`.

    >>> RetryPolicy(backoff="2s", give_up_on=(KeyError,)).backoff
    2.0
    """

    backoff: Duration = "1s"
    factor: float = 2.0
    max_backoff: Duration = "5m"
    jitter: float = 0.1
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        keep = object.__setattr__
        for name in ("backoff", "max_backoff"):
            keep(self, name, to_seconds(getattr(self, name), name))
        if not is_number(self.factor) or self.factor < 1:
            raise InvalidOption("factor", self.factor, "a number of at least 1")
        if not is_number(self.jitter) or not 0 <= self.jitter <= 1:
            raise InvalidOption("jitter", self.jitter, "a number from 0 to 1")
        keep(self, "give_up_on", _classes(self.give_up_on))


def _classes(given: object) -> tuple[type[BaseException], ...]:
    classes = tuple(given) if isinstance(given, tuple | list | set | frozenset) else (given,)
    if not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
        raise InvalidOption("give_up_on", given, "exception classes, such as (ValueError,)")
    return classes


def delay_after(attempt: int, policy: RetryPolicy, random: float) -> float:
    """Return how many seconds a job waits after its failed *attempt*, which counts from 1.

    *random*, from 0 to 1, decides where within the jitter the wait ends; 0.5 is the middle.

    >>> [delay_after(attempt, RetryPolicy(max_backoff="5s"), 0.5) for attempt in range(1, 5)]
    [1.0, 2.0, 4.0, 5.0]
    """
    backoff, most = to_seconds(policy.backoff), to_seconds(policy.max_backoff)
    try:
        wait = min(most, backoff * policy.factor ** (attempt - 1))
    except OverflowError:  # the power itself is too large long before the attempts are spent
        wait = most if backoff else 0.0
    return wait * (1 + policy.jitter * (2 * random - 1))


def gives_up_on(policy: RetryPolicy, error: BaseException) -> bool:
    """Tell whether *error* makes the job dead without another attempt."""
    return isinstance(error, policy.give_up_on)


def check_policy(retry: object) -> RetryPolicy | None:
    """Return *retry* if it is a policy, or None."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidOption("retry", retry, "a RetryPolicy, or None")
    return retry
