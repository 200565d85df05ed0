"""The page that leads through the house names files that exist."""

from __future__ import annotations

import re
from pathlib import Path


def test_every_file_that_the_page_names_exists(root: Path) -> None:
    page = (root / "docs/design/how-to-add.md").read_text()

    named = re.findall(r"`((?:src|tests|docs|tools)/[\w./]+)`", page)

    assert len(named) > 20
    assert not [name for name in named if not (root / name).exists()]
