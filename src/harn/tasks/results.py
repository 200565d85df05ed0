"""`Ok` and `Err`: an outcome as a value, for code that inspects failures instead of raising."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from harn.errors import InvalidOption

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # in `typing` from 3.13 on

T = TypeVar("T")
E = TypeVar("E")
T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """A success and its value.

    >>> unwrap(Ok(3))
    3
    """

    value: T_co


@dataclass(frozen=True, slots=True)
class Err(Generic[E_co]):
    """A failure and its reason: an exception, or any other value.

    >>> unwrap_err(Err("boom"))
    'boom'
    """

    error: E_co


def is_ok(result: Ok[T] | Err[Any]) -> TypeIs[Ok[T]]:
    """Tell whether *result* is an `Ok`.

    >>> is_ok(Ok(1)), is_ok(Err("no"))
    (True, False)
    """
    return isinstance(result, Ok)


def is_err(result: Ok[Any] | Err[E]) -> TypeIs[Err[E]]:
    """Tell whether *result* is an `Err`.

    >>> is_err(Ok(1)), is_err(Err("no"))
    (False, True)
    """
    return isinstance(result, Err)


def unwrap(result: Ok[T] | Err[Any]) -> T:
    """Return an `Ok`'s value; raise an `Err`'s exception.

    An `Err` whose payload is not an exception raises `InvalidOption` that shows it.

    >>> unwrap(Ok("fine"))
    'fine'
    """
    if isinstance(result, Ok):
        return result.value
    if isinstance(result, Err):
        if isinstance(result.error, BaseException):
            raise result.error
        raise InvalidOption("result", result, "an Ok; this is a failure, see unwrap_err")
    raise InvalidOption("result", result, "an Ok or an Err")


def unwrap_err(result: Ok[Any] | Err[E]) -> E:
    """Return an `Err`'s payload; raise `InvalidOption` for an `Ok`.

    >>> unwrap_err(Err("no"))
    'no'
    """
    if isinstance(result, Err):
        return result.error
    raise InvalidOption("result", result, "an Err; this one succeeded, see unwrap")
