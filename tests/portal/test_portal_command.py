"""`harn portal` as a user calls it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

import harn
from harn.cli import invoke

KEY = "the operators' key of the tests"


def fill(place: Path) -> None:
    async def main() -> None:
        await harn.worker_queue("triage").enqueue_many([1, 2])

    harn.run(main, state_dir=place)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), (" \n\n", "is empty"), ("short\n", "shorter than 16"), (None, "No such")],
)
def test_a_key_file_that_holds_no_good_key_is_refused(
    text: str | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path / "state")
    if text is not None:
        (tmp_path / "key").write_text(text)

    code = invoke(
        [
            "portal",
            "--state-dir",
            str(tmp_path / "state"),
            "--admin-key-file",
            str(tmp_path / "key"),
        ]
    )

    err = capsys.readouterr().err
    assert code == 1
    assert said in " ".join(err.split()) and err.startswith("error: ")
    assert "short" not in err.replace("shorter", "")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.test"])
def test_a_public_address_needs_a_key(
    host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path)

    code = invoke(["portal", "--state-dir", str(tmp_path), "--host", host])

    assert code == 1
    assert "give --admin-key-file" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("url", ["memory://", "sqlite:///{}/nothing.sqlite"])
def test_a_store_that_is_not_there_is_one_line_and_is_not_made(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = invoke(["portal", "--storage", url.format(tmp_path), "--port", "0"])

    assert (code, capsys.readouterr().err.count("error: ")) == (1, 1)
    assert list(tmp_path.iterdir()) == []


def test_the_portal_of_a_store_is_served_until_a_signal(tmp_path: Path) -> None:
    fill(tmp_path / "state")
    (tmp_path / "key").write_text(f"{KEY}\n")
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "harn", "portal", "--state-dir", str(tmp_path / "state")),
            *("--port", "0", "--admin-key-file", str(tmp_path / "key")),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        ready = next(
            json.loads(line) for line in process.stderr if line.startswith("{") and "ready" in line
        )
        url = f"http://{ready['bind']}"
        headers = {"Authorization": f"Bearer {KEY}"}
        seen = httpx2.get(f"{url}/api/v1/queues", headers=headers, trust_env=False, timeout=30)
        unseen = httpx2.get(f"{url}/api/v1/queues", trust_env=False, timeout=30)
        acted = httpx2.post(
            f"{url}/api/v1/queues/triage/pause", headers=headers, trust_env=False, timeout=30
        )
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=30)
    finally:
        process.kill()
        process.wait(timeout=30)
        process.stderr.close()

    assert seen.json()["queues"][0]["ready"] == 2
    assert (unseen.status_code, acted.json()["summary"]["paused"]) == (401, True)
    assert code == 0
