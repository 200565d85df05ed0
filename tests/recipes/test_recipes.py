"""The spec's four cookbook recipes, end to end, as they stand under examples/."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest

from harn.clock import SystemClock
from harn.triggers import Scheme, sign
from tests.orchestrator.processes import serving

GITHUB, STRIPE = "github signing secret", "stripe signing secret"


def example(root: Path, name: str, *args: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, str(root / "examples" / name), *args],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=80,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def post(url: str, scheme: Scheme, secret: str, payload: Any) -> httpx2.Response:
    body = json.dumps(payload).encode()
    headers = sign(scheme, secret.encode(), body, int(time.time()))
    return httpx2.post(f"{url}/hooks/{scheme}", content=body, headers=headers, trust_env=False)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_webhooks_of_several_senders_go_through_one_pool_over_http(
    root: Path, tmp_path: Path
) -> None:
    for name in ("harn.toml", "handlers.py"):
        shutil.copy(root / "examples" / "webhook_processor" / name, tmp_path)
    ledger = tmp_path / "ledger"
    env = {"GITHUB_SECRET": GITHUB, "STRIPE_SECRET": STRIPE, "WEBHOOK_LEDGER": str(ledger)}

    with serving(tmp_path, env=env) as process:
        url = process.url
        sent = [post(url, "github", GITHUB, {"n": n, "urgency": "3"}) for n in range(15)]
        sent += [post(url, "stripe", STRIPE, {"id": f"evt_{n}", "n": n}) for n in range(5)]
        again = [post(url, "stripe", STRIPE, {"id": f"evt_{n}", "n": n}) for n in range(5)]
        forged = post(url, "stripe", "a wrong secret", {"id": "evt_9", "n": 9})
        wait_for(lambda: len(lines(ledger)) == 20)
        process.signal(signal.SIGTERM)
        assert process.ends() == 0

    assert {answer.status_code for answer in sent} == {202}
    assert {answer.json()["status"] for answer in again} == {"duplicate"}
    assert forged.status_code == 401
    assert Counter(line["source"] for line in lines(ledger)) == {"github": 15, "stripe": 5}


def test_inference_calls_share_the_gpus_fairly(root: Path) -> None:
    said = example(root, "gpu_inference.py")

    assert "47 calls, 4 GPUs in use at most" in said
    number = int(re.search(r"was number (\d+) of 44", said)[1])  # type: ignore[index]
    assert number <= 16


def test_two_processes_share_the_gpus_of_one_tenant(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(root / "examples" / "gpu_inference.py"), str(tmp_path)]
    children = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        said = [child.communicate(timeout=80) for child in children]
    finally:
        for child in children:
            child.kill()

    # A call that found no free GPU would have failed, and its process with it.
    assert [child.returncode for child in children] == [0, 0], said
    assert ["47 calls" in out for out, _ in said] == [True, True]


def test_a_small_customer_does_not_wait_for_a_large_one(root: Path) -> None:
    said = example(root, "customer_fairness.py")

    queued = int(re.search(r"done, (\d+) tasks", said)[1])  # type: ignore[index]
    assert queued > 400
    assert "all 510 tasks are done" in said


def test_every_nightly_report_is_made_once_although_the_process_is_killed(root: Path) -> None:
    said = example(root, "nightly_reports.py")

    assert "60 in the morning" in said
    assert "each of them was made once" in said
    assert 0 < int(re.search(r"after (\d+) reports", said)[1]) < 60  # type: ignore[index]


def wait_for(condition: Any, within: float = 30) -> None:
    clock = SystemClock()
    end = clock.monotonic() + within
    while not condition():
        if clock.monotonic() > end:
            pytest.fail("it never came to pass")
        time.sleep(0.02)
