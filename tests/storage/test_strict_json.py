"""What is not JSON is refused on the way in, by name and place; nothing is changed in silence."""

from __future__ import annotations

import enum
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, strategies as st

from harn import (
    InvalidOption,
    NewJob,
    Runtime,
    channel_emit,
    event_log_emit,
    event_log_read,
    worker_queue,
)
from harn.storage import decode, encode
from harn.storage.strict_json import first_fault, is_plain

MOST = 1 << 20


class Word(enum.StrEnum):
    YES = "yes"


class Number(enum.IntEnum):
    ONE = 1


class Plain(enum.Enum):
    A = "a"


class Pair(NamedTuple):
    left: int
    right: int


@dataclass
class Point:
    x: int
    at: Any = None


class Line(msgspec.Struct):
    points: list[Any]


class Model:
    """Looks like a pydantic model to code that does not import pydantic."""

    def model_dump(self, mode: str, by_alias: bool) -> dict[str, Any]:
        assert mode == "json" and by_alias
        return {"at": "2026-01-01T00:00:00Z"}


class Text(str):
    __slots__ = ()


NOT_JSON = [
    (b"x", "bytes"),
    (bytearray(b"x"), "bytearray"),
    (memoryview(b"x"), "memoryview"),
    ({1, 2}, "set"),
    (frozenset({1}), "frozenset"),
    (datetime(2026, 1, 1, tzinfo=UTC), "datetime"),
    (date(2026, 1, 1), "date"),
    (time(1, 2), "time"),
    (timedelta(seconds=1), "timedelta"),
    (Decimal("1.5"), "Decimal"),
    (uuid.uuid4(), "UUID"),
    (Word.YES, "an enum"),
    (Number.ONE, "an enum"),
    (Plain.A, "an enum"),
    (float("nan"), "nan"),
    (float("-inf"), "-inf"),
    ({1: "a"}, "the key 1, a int"),
    ({Word.YES: 1}, "the key"),
    ({None: 1}, "the key None"),
    (10**4300, "more than 4,300 digits"),
    (1j, "complex"),
    (object(), "object"),
    (Point, "type"),
]


@pytest.mark.parametrize(("value", "named"), NOT_JSON, ids=[name for _, name in NOT_JSON])
def test_what_is_not_json_is_refused_with_its_place(value: Any, named: Any) -> None:
    with pytest.raises(InvalidOption) as refused:
        encode("payload", {"items": [0, 1, 2, {"at": value}]}, MOST)

    assert "payload.items[3].at" in str(refused.value)
    assert named in str(refused.value)


@pytest.mark.parametrize(("value", "named"), NOT_JSON, ids=[name for _, name in NOT_JSON])
def test_it_is_refused_by_itself_and_inside_objects_too(value: Any, named: Any) -> None:
    for holder, where in (
        (value, "payload "),
        (Point(1, value), "payload.at "),
        (Line([1, value]), "payload.points[1] "),
        ((None, Point(2, [value])), "payload[1].at[0] "),
    ):
        with pytest.raises(InvalidOption, match="payload") as refused:
            encode("payload", holder, MOST)
        assert where in str(refused.value)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"a": [1, 2.5, "x", True, None]}, {"a": [1, 2.5, "x", True, None]}),
        ((1, (2, 3)), [1, [2, 3]]),
        (Pair(1, 2), [1, 2]),
        (Point(1, Point(2)), {"x": 1, "at": {"x": 2, "at": None}}),
        (Line([Point(1)]), {"points": [{"x": 1, "at": None}]}),
        (Model(), {"at": "2026-01-01T00:00:00Z"}),
        (Text("t"), "t"),
        ({Text("k"): 1}, {"k": 1}),
        ([-(2**70), 2**70, 10**4299], [-(2**70), 2**70, 10**4299]),
    ],
)
def test_what_json_has_is_kept(value: Any, kept: Any) -> None:
    assert decode(encode("payload", value, MOST)) == kept


def test_a_value_that_holds_itself_or_is_too_deep_is_refused_clearly() -> None:
    ring: list[Any] = [1]
    ring.append({"again": ring})
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for value in (ring, deep):
        with pytest.raises(InvalidOption, match="200 levels that does not hold itself"):
            encode("payload", value, MOST)
    while isinstance(deep, list):  # a deep list is taken apart, not left to the interpreter
        deep = deep.pop()


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
odd = st.sampled_from([value for value, _ in NOT_JSON if not isinstance(value, int)])


@given(st.recursive(plain | odd, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_the_quick_look_and_the_thorough_one_agree_and_what_is_kept_is_equal(value: Any) -> None:
    fault = first_fault(value, "payload")
    try:
        encoded = encode("payload", value, MOST)
    except InvalidOption:
        assert fault is not None or "surrogate" in repr(value) or not is_text(value)
        return
    assert fault is None and is_plain(value)
    assert decode(encoded) == as_lists(value)


def is_text(value: Any) -> bool:
    try:
        repr(value).encode()
        msgspec.json.encode(value)
    except (UnicodeEncodeError, TypeError, ValueError):
        return False
    return True


def as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: as_lists(each) for key, each in value.items()}
    return [as_lists(each) for each in value] if isinstance(value, list | tuple) else value


@pytest.fixture
async def opened(storage_url: str) -> AsyncIterator[Runtime]:
    async with Runtime(storage=storage_url) as runtime:
        yield runtime


async def test_every_door_refuses_what_is_not_json_and_nothing_lands(opened: Runtime) -> None:
    queue, bad = worker_queue("q"), {"at": datetime.now(UTC)}

    for call in (
        lambda: queue.enqueue(bad),
        lambda: queue.enqueue({}, headers=bad),
        lambda: queue.enqueue_many([{}, NewJob(bad)]),
        lambda: event_log_emit("t", "k", bad),
        lambda: event_log_emit("t", "k", {}, headers=bad),
        lambda: channel_emit("c", bad),
    ):
        with pytest.raises(InvalidOption, match="at is a datetime"):
            await call()

    assert await queue.claim_next("w") is None
    assert await event_log_read("t") == []


@pytest.mark.parametrize("outcome", [b"bytes", {1}, {"at": date(2026, 1, 1)}, Word.YES])
async def test_an_outcome_that_is_not_json_is_kept_as_text_and_marked(
    opened: Runtime, outcome: Any
) -> None:
    queue = worker_queue("q")
    await queue.enqueue({})

    claim = await queue.claim_next("w")
    assert claim
    await claim.ack(outcome=outcome)

    [answer] = await event_log_read("worker.q.responses")
    assert answer.payload["outcome"] == str(outcome)
    assert answer.payload["outcome_omitted"] is True
