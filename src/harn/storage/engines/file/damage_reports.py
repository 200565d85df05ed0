"""What was found damaged in a directory: logged, listed, and kept aside."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from harn.storage.jsonl import Damage, count_aside, set_aside

logger: logging.Logger = logging.getLogger("harn.storage")


class DamageReports:
    """Every damage that this process has seen; *read_only* leaves the bytes where they are."""

    def __init__(self, *, read_only: bool) -> None:
        self._read_only = read_only
        self._texts: dict[str, None] = {}

    def add(self, path: Path, found: list[Damage]) -> None:
        """Report where *path* is damaged, and copy the damaged bytes aside."""
        for each in found:
            text = f"{path}: damaged at byte {each.offset}: {each.reason}"
            self._texts[text] = None
            logger.warning("%s (%d bytes)", text, len(each.data))
        if not self._read_only:
            set_aside(path, found)

    def add_missing(self, path: Path, first: int, last: int) -> None:
        """Report that *path* has lost the records *first* to *last*."""
        text = f"{path}: records {first} to {last} are missing"
        self._texts[text] = None
        logger.warning("%s", text)

    def listed(self) -> list[str]:
        """Return every report."""
        return list(self._texts)


def bytes_set_aside(paths: Iterable[Path]) -> list[str]:
    """Report which of *paths* have damaged bytes aside, from this process or an earlier one."""
    return [
        f"{path}.damaged: {count} damaged pieces, set aside; move it away when seen"
        for path in paths
        if (count := count_aside(path))
    ]
