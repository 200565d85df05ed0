"""One trace from the webhook to the model, through the real SDK and an OTLP receiver."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harn.telemetry.spans import come_from, span_after, trace_headers
from tests.telemetry.receiver import Receiver

ERROR = 2
"""The number that OTLP gives to the status of an error."""
PROGRAM = str(Path(__file__).with_name("traced.py"))


def run(role: str, receiver: Receiver, state: Path) -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM, role, receiver.url, str(state)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "NO_PROXY": "*", "no_proxy": "*"},
    )
    assert done.returncode == 0, done.stderr


def test_a_trace_goes_through_a_trigger_and_a_pool_to_a_model(tmp_path: Path) -> None:
    with Receiver() as receiver:
        run("in_process", receiver, tmp_path)

    webhook = receiver.named("webhook")
    submit = receiver.named("pool.submit work")
    dequeue = receiver.named("pool.dequeue work")
    one_trace = [
        receiver.named(name)
        for name in ("trigger.accept", "trigger.dispatch router", "pool.submit work", "chat small")
    ]
    assert {span.trace_id for span in one_trace} == {webhook.trace_id}
    assert [link.span_id for link in dequeue.links] == [submit.span_id]


def test_a_trace_goes_over_a_queue_to_another_process_with_a_link(tmp_path: Path) -> None:
    with Receiver() as receiver:
        run("produce", receiver, tmp_path)
        run("consume", receiver, tmp_path)

    webhook = receiver.named("webhook")
    job = receiver.named("worker.job triage")
    asked = receiver.named("chat small")
    assert job.trace_id == asked.trace_id == webhook.trace_id
    assert job.parent_span_id == webhook.span_id
    assert [link.span_id for link in job.links] == [webhook.span_id]
    assert asked.parent_span_id == job.span_id
    usage = {each.key: each.value.int_value for each in asked.attributes}
    assert (usage["gen_ai.usage.input_tokens"], usage["gen_ai.usage.output_tokens"]) == (3, 1)


def test_a_failed_dispatch_has_an_error_status_its_exception_and_its_accept(tmp_path: Path) -> None:
    with Receiver() as receiver:
        run("failing", receiver, tmp_path)

    accept, dispatch = receiver.named("trigger.accept"), receiver.named("trigger.dispatch router")
    assert (dispatch.trace_id, dispatch.parent_span_id) == (accept.trace_id, accept.span_id)
    assert dispatch.status.code == ERROR
    assert "no luck" in dispatch.status.message
    [event] = dispatch.events
    told = {each.key: each.value.string_value for each in event.attributes}
    assert event.name == "exception"
    assert (told["exception.type"], told["exception.message"]) == ("ValueError", "no luck")
    assert "in handler" in told["exception.stacktrace"]


def test_a_dispatch_that_another_process_takes_over_is_part_of_the_same_trace(
    tmp_path: Path,
) -> None:
    with Receiver() as receiver:
        run("accept", receiver, tmp_path)
    accept = receiver.named("trigger.accept")
    with Receiver() as receiver:
        run("take_over", receiver, tmp_path)

    dispatch = receiver.named("trigger.dispatch router")

    assert (dispatch.trace_id, dispatch.parent_span_id) == (accept.trace_id, accept.span_id)
    assert [link.span_id for link in dispatch.links] == [accept.span_id]
    assert dispatch.status.code != ERROR


@pytest.mark.parametrize(
    "written",
    [
        *(
            "",
            "00-xyz",
            "01-" + "a" * 32 + "-" + "b" * 16 + "-01",
            "00-" + "0" * 32 + "-" + "b" * 16,
        ),
        "00-" + "0" * 32 + "-" + "b" * 16 + "-01",
        "00-" + "a" * 32 + "-" + "0" * 16 + "-01",
        "00-" + "A" * 32 + "-" + "b" * 16 + "-01",
        7,
        None,
    ],
)
def test_a_header_that_is_no_trace_is_none(written: object) -> None:
    assert come_from({"traceparent": written}) is None


def test_a_header_that_is_one_is_read_back() -> None:
    context = come_from({"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"})

    assert context is not None
    assert (context.trace_id, context.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert context.is_remote


def test_without_a_tracer_nothing_is_carried_and_nothing_is_opened() -> None:
    assert trace_headers() == {}
    with span_after("job", {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}) as opened:
        assert opened is None
