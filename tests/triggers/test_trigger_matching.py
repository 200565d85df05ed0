"""Which bindings an event reaches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harn import InvalidOption
from harn.triggers.matching import Match, check_match, is_wanted, route
from tests.triggers.trigger_events import an_event


@dataclass(frozen=True)
class Bound:
    id: str
    match: Match
    provider: str = "channel"
    version: int = 1


def emitted(name: str, payload: Any = None) -> Any:
    return an_event(provider_payload={"name": name, "payload": payload})


@pytest.mark.parametrize(
    ("events", "reached"),
    [
        (["channel:orders"], True),
        (["channel.emit"], True),
        ([], True),
        (["channel:order"], False),
        (["channel:orders.*"], False),
        (["orders"], False),
        (["other", "channel:orders"], True),
    ],
)
def test_a_channel_event_answers_to_its_name(events: list[str], reached: bool) -> None:
    binding = Bound("b", check_match({"events": events}))

    assert is_wanted(binding, emitted("orders")) is reached


@pytest.mark.parametrize(
    ("events", "reached"),
    [
        (["pull_request"], True),
        (["pull_request.opened"], True),
        (["pull_request.closed"], False),
        (["push"], False),
    ],
)
def test_a_dotted_kind_answers_to_its_first_part_too(events: list[str], reached: bool) -> None:
    event = an_event(provider="github", kind="pull_request.opened")

    assert is_wanted(Bound("b", check_match({"events": events}), "github"), event) is reached


def test_another_provider_is_not_reached() -> None:
    assert not is_wanted(Bound("b", Match(), "cron"), emitted("orders"))


@pytest.mark.parametrize(
    ("wanted", "reached"),
    [
        ({"repo": "harn"}, True),
        ({"provider_payload.payload.repo": "harn"}, True),
        ({"repo": "harn", "n": 1}, True),
        ({"n": 1.0}, True),
        ({"n": True}, False),
        ({"flag": 1}, False),
        ({"flag": True}, True),
        ({"missing": None}, False),
        ({"tags.0": "a"}, True),
        ({"tags": ["a"]}, True),
        ({"tags": ["a", "b"]}, False),
        ({"deep": {"x": 1}}, True),
    ],
)
def test_a_filter_compares_values_inside_the_payload(wanted: dict[str, Any], reached: bool) -> None:
    event = emitted("x", {"repo": "harn", "n": 1, "flag": True, "tags": ["a"], "deep": {"x": 1}})

    assert is_wanted(Bound("b", check_match({"filter": wanted})), event) is reached


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 5)), max_size=12, unique=True),
    st.randoms(),
)
def test_dispatch_order_is_by_id_then_version_whatever_the_registration(
    pairs: Any, random: Any
) -> None:
    bindings = [Bound(id, Match(), version=version) for id, version in pairs]
    random.shuffle(bindings)

    reached = route(bindings, emitted("x"))

    assert [(b.id, b.version) for b in reached] == sorted(pairs)


@pytest.mark.parametrize(
    ("match", "named"),
    [
        ("channel:x", "match"),
        ({"event": ["x"]}, "did you mean 'events'"),
        ({"events": "channel:x"}, "match.events"),
        ({"events": [""]}, "match.events"),
        ({"events": [1]}, "match.events"),
        ({"events": ["channel:"]}, "match.events"),
        ({"events": ["x"] * 1000}, "match.events"),
        ({"filter": ["a"]}, "match.filter"),
        ({"filter": {"a..b": 1}}, "match.filter"),
        ({"path": 5}, "match.path"),
        ({"schedule": ""}, "match.schedule"),
    ],
)
def test_a_bad_match_is_named(match: Any, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        check_match(match)
