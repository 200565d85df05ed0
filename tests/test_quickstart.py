"""The quickstart, word for word: its files are written, its commands run, its output compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

STEP = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_quickstart_works_word_for_word(root: Path, tmp_path: Path) -> None:
    page = (root / "docs" / "quickstart.md").read_text()
    binaries = Path(sys.executable).parent
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HARN_")},
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }
    said, ran = "", []
    for language, flags, text in STEP.findall(page):
        title = re.search(r'title="([^"]+)"', flags)
        if title:
            (tmp_path / title[1]).write_text(text)
        elif language == "sh" and "pip install" not in text:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text],
                cwd=tmp_path,
                env=environ,
                capture_output=True,
                text=True,
                timeout=60,
            )
            said = done.stdout
            assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
            ran.append(said)
        elif language == "text":
            assert [line for line in text.splitlines() if line not in said.splitlines()] == []

    assert "summaries      3" in ran[1], "harn top shows the three jobs that wait"
    assert re.search(r"summaries +0 +0 +0 +3", ran[2]), "queue ls shows them acked"
