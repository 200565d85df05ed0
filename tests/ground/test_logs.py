from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from harn import Runtime
from harn.telemetry import logs

NASTY = "a\r\nb\x1b[2J\u2028c\x85d"


@pytest.mark.parametrize("format", logs.FORMATS)
async def test_a_record_is_one_line_whatever_it_contains(format: Any) -> None:
    stream = io.StringIO()

    with logs.configured(format, logging.INFO, stream):
        async with Runtime(tenant_id=f"acme{NASTY}"):
            logging.getLogger("harn.test").warning("pool %s is full", NASTY)
            try:
                raise ValueError(NASTY)
            except ValueError:
                logging.getLogger("harn.test").exception("it failed")

    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("format", logs.FORMATS)
def test_an_error_without_a_printable_message_is_logged_all_the_same(
    format: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    monkeypatch.setattr(logging.getLogger("harn"), "propagate", False)
    stream = io.StringIO()

    with logs.configured(format, logging.INFO, stream):
        logging.getLogger("harn.test").error("it failed", exc_info=Mute())

    assert "it failed" in stream.getvalue()
    assert capsys.readouterr().err == ""


async def test_json_lines_say_who_was_running() -> None:
    stream = io.StringIO()

    with logs.configured("json", logging.INFO, stream):
        async with Runtime(tenant_id="acme"):
            logging.getLogger("harn.test").info("hello")
        logging.getLogger("harn.test").info("outside")
    logging.getLogger("harn.test").warning("after the block")

    inside, outside = (json.loads(line) for line in stream.getvalue().splitlines())
    assert inside["task_id"] == "task_root"
    assert inside["tenant_id"] == "acme"
    assert (inside["level"], inside["logger"], inside["message"]) == ("info", "harn.test", "hello")
    assert "task_id" not in outside


@pytest.mark.parametrize("format", logs.FORMATS)
def test_nothing_in_a_log_line_is_obeyed_by_a_terminal(
    format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # pytest-xdist cannot carry what it would capture.
    monkeypatch.setattr(logging.getLogger("harn"), "propagate", False)
    stream = io.StringIO()
    evil = "a\x1b\x7f\x9b\u202e\u2028\ud800b"

    with logs.configured(format, logging.INFO, stream):
        logging.getLogger("harn.test").warning("pool %s is full", evil)

    [line] = stream.getvalue().split("\n")[:-1]
    assert line.isprintable()
    if format == "json":
        assert json.loads(line)["message"] == f"pool {evil} is full"
