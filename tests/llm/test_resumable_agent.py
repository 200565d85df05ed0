"""The example of an agent that is killed, run as a user would run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "resumable_agent.py"


@pytest.mark.timeout(180)
def test_a_killed_agent_repeats_no_call_that_was_answered() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=170
    )

    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    calls = {int(call): times for call, times in summary["calls"].items()}
    assert [calls[call] for call in (1, 2, 3)] == [1, 1, 1]
    assert calls[4] >= 2  # it was under way when its process died
    assert summary["pages"][:3] == [1, 2, 3]
    assert summary["text"] == "The answer is on page five."
    assert summary["tokens"] == 660
    assert summary["steps"] == ["agent 1: model", "agent 1: read_page"] * 5 + ["agent 1: model"]
