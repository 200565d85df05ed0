"""When a waiting job will probably start: the decision, by tables and properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from harn.orchestrator.views.predicted_start import Pace, Waiting, predicted_start
from harn.orchestrator.views.recent_starts import RECENT_MS, pace_of
from harn.storage import Event

BUSY = Pace(over_ms=60_000, started=120, by_key={"acme": 30, "rare": 1})
READY = Waiting("ready", now=1_000_000, key="acme", ahead=9, by_key=True, consumers=2)


@pytest.mark.parametrize(
    ("job", "kind", "text"),
    [
        (READY, "about", "about in 20s, at 30 jobs a minute"),
        (replace(READY, by_key=False), "about", "about in 5s, at 2 jobs a second"),
        (replace(READY, by_key=False, ahead=0), "about", "about now, at 2 jobs a second"),
        # One start says nothing: its part of the whole queue's starts is the better guess.
        (replace(READY, key="rare", part=0.5), "about", "about in 10s, at 1 job a second"),
        (replace(READY, key="new", part=0.25), "about", "about in 20s, at 30 jobs a minute"),
        (replace(READY, ahead=10_000), "at_least", "in more than 5h33m, at 30 jobs a minute"),
        (replace(READY, ahead=None), "unknown", "unknown: its place was not counted; open the job"),
        (replace(READY, is_paused=True), "unknown", "unknown while paused"),
        (replace(READY, state="parked"), "unknown", "unknown while paused"),
        (replace(READY, consumers=0), "unknown", "unknown: no consumer of this queue is alive"),
        (replace(READY, able=0), "unknown", "unknown: no living consumer knows its function"),
        (
            replace(READY, state="scheduled", wake_at=1_090_000),
            "at_least",
            "not before its time, in 1m30s",
        ),
        (replace(READY, state="claimed"), "running", "it is running"),
        (replace(READY, state="acked"), "over", "it does not start again by itself"),
    ],
)
def test_a_start_is_predicted_or_what_is_missing_is_said(
    job: Waiting, kind: str, text: str
) -> None:
    found = predicted_start(job, BUSY)

    assert (found.kind, found.text) == (kind, text)


def test_without_starts_nothing_is_predicted() -> None:
    never = predicted_start(READY, Pace())
    not_lately = predicted_start(READY, Pace(over_ms=600_000))

    assert never.text == "unknown: no job was started yet"
    assert not_lately.text == "unknown: no job was started in the last 10m"


@given(
    ahead=st.integers(0, 9_999),
    more=st.integers(0, 9_999),
    started=st.integers(3, 10_000),
    over=st.integers(1, 600_000),
)
def test_more_jobs_ahead_never_mean_an_earlier_start(
    ahead: int, more: int, started: int, over: int
) -> None:
    pace = Pace(over_ms=over, started=started)
    near = predicted_start(replace(READY, by_key=False, ahead=ahead), pace)
    far = predicted_start(replace(READY, by_key=False, ahead=min(9_999, ahead + more)), pace)

    assert near.at_ms is not None and far.at_ms is not None
    assert READY.now <= near.at_ms <= far.at_ms


def claimed(at: int, key: str) -> Event:
    return Event(at, "worker.q.claims", "job_claimed", {"scheduling": {"key": key}}, {}, at)


def test_the_pace_counts_the_starts_of_the_last_minutes_by_key() -> None:
    now = RECENT_MS + 60_000
    old, records = claimed(1, "a"), [claimed(now - 50_000, "a"), claimed(now - 10_000, "b")]

    assert pace_of(records, now) == Pace(50_000, 2, {"a": 1, "b": 1})
    assert pace_of([old, *records], now) == Pace(RECENT_MS, 2, {"a": 1, "b": 1})
    assert pace_of([old], now) == Pace(RECENT_MS)
    assert pace_of([], now) == Pace()
