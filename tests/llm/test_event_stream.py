"""The format of server-sent events, as the HTML standard reads it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from harn import SseError
from harn.llm.event_stream import LONGEST_RETRY_MS, EventStreamParser, SseEvent

MOST = 10_000


def parse(*pieces: bytes) -> list[SseEvent]:
    parser = EventStreamParser(MOST)
    return [event for piece in pieces for event in parser.feed(piece)]


@pytest.mark.parametrize(
    ("text", "events"),
    [
        # The examples of the standard.
        ("data: YHOO\ndata: +2\ndata: 10\n\n", [SseEvent("message", "YHOO\n+2\n10")]),
        (
            ": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\n"
            "data:  third event\n\n",
            [
                SseEvent("message", "first event", "1"),
                SseEvent("message", "second event", ""),
                SseEvent("message", " third event", ""),
            ],
        ),
        ("data\n\ndata\ndata\n\ndata:", [SseEvent("message", ""), SseEvent("message", "\n")]),
        ("data:test\n\ndata: test\n\n", [SseEvent("message", "test")] * 2),
        # The ends of lines, the mark of byte order, comments, fields without a meaning.
        ("event: a\r\ndata: 1\r\rdata: 2\r\n\r\n", [SseEvent("a", "1"), SseEvent("message", "2")]),
        ("\ufeffdata: 1\n\n\ufeffdata: 2\n\n", [SseEvent("message", "1")]),
        (":\n:x\nnothing: 1\ndata: 1\n\n", [SseEvent("message", "1")]),
        ("event: lost\n\ndata: 1\n\n", [SseEvent("message", "1")]),
        ("Data: 1\n\n data: 2\n\n", []),
        ("data: a: b\n\n", [SseEvent("message", "a: b")]),
        # An id lasts, also if its event has no data; one with NUL is ignored.
        ("id: 7\n\ndata: 1\n\n", [SseEvent("message", "1", "7")]),
        ("id: 7\nid: 8\0\ndata: 1\n\n", [SseEvent("message", "1", "7")]),
        # What is not complete is not an event.
        ("data: 1\n", []),
        ("data: 1\n\ndata: 2\nid: 9", [SseEvent("message", "1")]),
    ],
)
def test_streams_are_read_as_the_standard_says(text: str, events: list[SseEvent]) -> None:
    assert parse(text.encode()) == events


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert parse(b"data: a\xffb\n\n") == [SseEvent("message", "a\ufffdb")]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("1500", 1500),
        ("0", 0),
        ("0000000000001500", 1500),
        ("99999999999999999999", LONGEST_RETRY_MS),
        ("-1", None),
        ("1.5", None),
        ("", None),
        ("\u0663", None),
        ("5s", None),
    ],
)
def test_a_pause_is_whole_milliseconds(value: str, found: int | None) -> None:
    parser = EventStreamParser(MOST)
    list(parser.feed(f"retry: {value}\n".encode()))

    assert parser.retry_ms == found


def test_the_id_to_continue_after_is_that_of_the_last_whole_event() -> None:
    parser = EventStreamParser(MOST, "5")
    assert parser.id == "5"

    list(parser.feed(b"id: 6\ndata: 1\n\nid: 7\ndata: 2\n"))

    assert parser.id == "6"


@pytest.mark.parametrize(
    "text",
    [
        b"data: " + b"x" * MOST,
        b"x" * (MOST + 1),
        b":" + b"x" * MOST + b"\n",
        b"data: 1234567890\n" * (MOST // 10),
    ],
)
def test_an_event_that_is_too_long_is_refused(text: bytes) -> None:
    parser = EventStreamParser(MOST)
    with pytest.raises(SseError, match="max_event_bytes"):
        for start in range(0, len(text), 100):
            list(parser.feed(text[start : start + 100]))


def test_many_events_may_be_longer_than_one_may_be() -> None:
    assert len(parse(b"data: 1234567890\n\n" * MOST)) == MOST


def reference(stream: bytes) -> list[SseEvent]:
    """The algorithm of the standard, on the whole stream at once."""
    text = stream.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]
    events, data, kind, id = [], "", "", ""
    for line in lines:
        if not line:
            if data:
                events.append(SseEvent(kind or "message", data[:-1], id))
            data = kind = ""
        elif not line.startswith(":"):
            name, _, value = line.partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "data":
                data += value + "\n"
            elif name == "event":
                kind = value
            elif name == "id" and "\0" not in value:
                id = value
    return events


FRAGMENTS = st.sampled_from(
    [
        *(b"data", b"event", b"id", b"retry", b":", b" ", b"\n", b"\r", b"\r\n", b"x", b"7", b"\0"),
        *(b"\xef\xbb\xbf", "é€😀".encode(), b"\xff", b"\xe2\x82", b"data: 1\n\n", b"id: 2\r\n"),
    ]
)
STREAMS = st.lists(FRAGMENTS, max_size=60).map(b"".join) | st.binary(max_size=200)


@given(STREAMS)
def test_any_bytes_give_what_the_standard_says(stream: bytes) -> None:
    assert parse(stream) == reference(stream)


@given(STREAMS, st.lists(st.integers(0, 400), max_size=12))
def test_events_do_not_depend_on_how_the_bytes_arrive(stream: bytes, cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(borders)]

    assert parse(*pieces) == parse(stream)
    assert parse(*(bytes([each]) for each in stream)) == parse(stream)


LINE = st.text("aé€😀: \t\ufeff\x85\u2028", max_size=6)


@given(st.lists(st.tuples(LINE, st.lists(LINE, min_size=1, max_size=3), LINE), max_size=5))
def test_what_a_server_writes_is_what_is_read(wanted: list[tuple[str, list[str], str]]) -> None:
    stream = "".join(
        f"event: {kind}\n" + "".join(f"data: {line}\n" for line in data) + f"id: {id}\n\n"
        for kind, data, id in wanted
    )

    assert parse(stream.encode()) == [
        SseEvent(kind or "message", "\n".join(data), id) for kind, data, id in wanted
    ]
