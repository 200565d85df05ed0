"""The page *Talk with A2A agents*: its manifest is served, and its client reaches its handler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.orchestrator.processes import serving, until

PAGE = Path(__file__).parent.parent.parent / "docs" / "how-to" / "a2a.md"
FENCE = re.compile(r"^```\w+[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_pages_client_reaches_the_pages_handler(tmp_path: Path) -> None:
    manifest, client, handler = FENCE.findall(PAGE.read_text())
    (tmp_path / "harn.toml").write_text(manifest)
    (tmp_path / "handlers.py").write_text(f"import sys\n\nsys.stdout = sys.stderr\n{handler}")
    (tmp_path / "client.py").write_text(client)
    key = {"AGENT_KEY": "a key of sixteen letters"}

    with serving(tmp_path, env=key) as service:
        environ = {**os.environ, **key, "AGENT_URL": service.url}
        command = [sys.executable, "client.py"]
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60
        )
        until(lambda: "acme please review 1984\n" in service.lines)

    assert done.stdout == "TASK_STATE_SUBMITTED\n", done.stderr
