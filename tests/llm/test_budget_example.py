"""The example that sells it, run as a user would run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "agents_in_budget.py"


@pytest.mark.timeout(180)
def test_two_processes_share_one_budget_and_tenants_take_turns() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=170
    )

    summary = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert summary["agents"] == 200
    assert summary["failed"] == []
    for name, limit in summary["limits"].items():
        assert summary["arrived"][name] > limit  # one minute is not enough
    assert summary["over_limit"] is False, summary
    assert min(summary["used"].values()) >= 0.95, summary
    assert summary["widest_gap_between_tenants"] <= 1


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_leaves_nothing_running(workers: int) -> None:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--rpm", "30"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        parent = psutil.Process(process.pid)
        assert process.stderr
        try:
            while len(children := parent.children(recursive=True)) < workers:
                assert process.poll() is None, process.stderr.read()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)  # every process of the example holds this pipe open
        finally:
            with suppress(ProcessLookupError):  # none left: as it should be
                os.killpg(process.pid, signal.SIGKILL)

    _, alive = psutil.wait_procs(children, timeout=30)
    assert alive == []
