"""Which topics the listener looks at for idle readers, and how it wakes them."""

from __future__ import annotations

import pytest

from harn.storage.engines.postgres import newest_offsets
from harn.storage.engines.postgres.newest_offsets import EVERY, FORGET, FRESH, TopicLooks

TOPICS = ("a", "b")


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(newest_offsets, "SystemClock", time)
    return time


def looked(**heads: int) -> TopicLooks:
    """Return looks of which one has seen both topics."""
    looks = TopicLooks()
    looks.mark(TOPICS)
    looks.saw(looks.due(), heads)
    return looks


def test_marks_are_equal_until_a_topic_grows(time: Time) -> None:
    looks = looked(a=3)
    before, _ = looks.mark(TOPICS)

    assert looks.saw(TOPICS, {"a": 3}) == []
    assert looks.mark(TOPICS) == (before, False)
    assert looks.saw(TOPICS, {"a": 3, "b": 1}) == ["b"]
    assert looks.mark(TOPICS)[0] not in (before, None)


def test_what_was_heard_is_another_mark(time: Time) -> None:
    looks = looked(a=3)
    before, _ = looks.mark(TOPICS)

    looks.heard()

    assert looks.mark(TOPICS)[0] not in (before, None)


def test_there_is_no_mark_before_the_first_look_and_without_a_listener(time: Time) -> None:
    looks = TopicLooks()

    assert looks.mark(TOPICS) == (None, True)
    assert looks.mark(TOPICS) == (None, False)
    looks.saw(looks.due(), {})
    assert looks.mark(TOPICS)[0] is not None
    assert looks.mark((*TOPICS, "c")) == (None, True)
    looks.saw(looks.due(), {})
    looks.stop()
    assert looks.mark(TOPICS) == (None, False)


def test_an_old_look_is_no_mark(time: Time) -> None:
    looks = looked(a=3)

    time.now += FRESH + 0.1

    assert looks.mark(TOPICS)[0] is None


def test_a_look_is_due_at_once_for_a_new_topic_and_then_now_and_again(time: Time) -> None:
    looks = TopicLooks()
    assert looks.wait() is None

    looks.mark(TOPICS)
    assert looks.wait() == 0
    looks.saw(looks.due(), {})

    assert looks.wait() == pytest.approx(EVERY)
    time.now += EVERY
    assert looks.wait() == 0
    looks.mark(("c",))
    assert looks.wait() == 0


def test_a_topic_that_no_reader_asks_for_is_forgotten(time: Time) -> None:
    looks = looked(a=3)
    time.now += FORGET / 2
    looks.mark(("a",))

    time.now += FORGET / 2 + 1

    assert looks.due() == ["a"]
    time.now += FORGET
    assert looks.due() == []
    assert looks.wait() is None
