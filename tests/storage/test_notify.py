"""When a process notifies others of its commits: with a commit, or by the notifier's thread."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest

from harn.storage.engines.postgres import notify
from harn.storage.engines.postgres.arrays import encode_texts
from harn.storage.engines.postgres.notify import Notifier

HOUR = 3600.0


class Borrower:
    """Lends no connection, and counts how often the thread asks for one."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.times = 0

    def __call__(self) -> Any:
        self.times += 1
        self.asked.release()
        raise psycopg.OperationalError("there is none")


def topics_of(statements: Any) -> Any:
    [(_, params)] = statements
    return params["topics"]


@pytest.fixture
def borrower() -> Borrower:
    return Borrower()


@pytest.fixture
def notifier(borrower: Borrower) -> Notifier:
    return Notifier(borrower, "harn")


def test_the_first_commit_after_a_pause_brings_its_notification(notifier: Notifier) -> None:
    assert topics_of(notifier.at_once({"b", "a"})) == encode_texts(["a", "b"])
    assert notifier.at_once({"a"}) == []


def test_a_later_commit_brings_what_was_left_out(
    notifier: Notifier, borrower: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "GAP", HOUR)
    notifier.at_once({"a"})
    notifier.tell({"b"})
    notifier.tell({"c"})

    monkeypatch.setattr(notify, "NEXT", 0.0)
    brought = topics_of(notifier.at_once({"d"}))
    notifier.stop()

    assert brought == encode_texts(["b", "c", "d"])
    assert borrower.times == 0  # nothing was left for the thread


def test_the_thread_tells_what_no_commit_brought(notifier: Notifier, borrower: Borrower) -> None:
    for _ in range(2):
        notifier.at_once({"a"})
        notifier.tell({"b"})

        assert borrower.asked.acquire(timeout=10)
    notifier.stop()

    assert borrower.times == 2


def test_what_is_left_is_told_when_the_store_is_closed(
    notifier: Notifier, borrower: Borrower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "GAP", HOUR)
    notifier.at_once({"a"})
    notifier.tell({"b"})

    notifier.stop()

    assert borrower.times == 1
