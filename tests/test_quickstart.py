"""The quickstart, word for word: its files are written, its commands run, its output compared.

How long each step took is printed (`pytest -rP`); nothing depends on it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

STEP = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_the_quickstart_works_word_for_word(root: Path, tmp_path: Path) -> None:
    page = (root / "docs" / "quickstart.md").read_text()
    binaries = Path(sys.executable).parent
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HARN_")},
        "PATH": f"{binaries}:{os.environ['PATH']}",
    }
    said, ran, begun = "", [], time.monotonic()
    for language, flags, text in STEP.findall(page):
        title = re.search(r'title="([^"]+)"', flags)
        if title:
            (tmp_path / title[1]).write_text(text)
        elif language == "sh" and "pip install" not in text:
            at = time.monotonic()
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
            print(f"{time.monotonic() - at:6.1f} s  {' && '.join(text.split(chr(10))[:-1])}")
        elif language == "text":
            assert [line for line in text.splitlines() if line not in said.splitlines()] == []

    print(f"{time.monotonic() - begun:6.1f} s  in all, after the install")
    assert re.search(r"summaries +41\b", ran[1]), "harn top shows the jobs that wait"
    assert re.search(r"summaries +0 +0 +0 +41", ran[2]), "queue ls shows them acked"
