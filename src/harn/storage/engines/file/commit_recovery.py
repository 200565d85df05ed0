"""Carrying a commit's parts over to the topics' files, also to files that are not as expected.

A part states the byte where it goes. After a crash or a power cut that is where it belongs,
whatever is there. In a copy that was taken file by file, the file may be older or newer than
the journal: it may lack what came before the part, or have been written again without what was
trimmed. There the records go by their ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from harn.storage.engines.file.commit_journal import Part
from harn.storage.engines.file.topic_file import RecordLine, TopicFile, read_line, write_header
from harn.storage.jsonl import close_line, intact_pieces, is_sealed, split_lines

Pread = Callable[[int, int], bytes]
"""Return at most so many bytes (second) from a place (first)."""


def fits(part: Part, there: Pread, size: int) -> bool:
    """Tell whether a file of *size* bytes is laid out as *part* expects.

    It is not if the part would leave a hole, or overwrite an intact record with another.
    """
    if part.at > size or (part.at and there(part.at - 1, 1) != b"\n"):
        return False
    found = there(part.at, len(part.data))
    if found == part.data:
        return True
    expected = set(split_lines(part.data))
    lines = split_lines(found)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += _rest_of_line(there, part.end)
    return all(line in expected for line in lines if is_sealed(line))


def mended(part: Part, there: Pread) -> bytes:
    """Return the data of a damaged *part*, with the lines that the file has intact."""
    lines, at = [], part.at
    for line in split_lines(part.data):
        if not is_sealed(line):
            found = there(at, len(line))
            if len(found) == len(line) and all(map(is_sealed, split_lines(found))):
                line = found
            else:
                line = b"".join(map(close_line, intact_pieces(line)))
        lines.append(line)
        at += len(line)
    return b"".join(lines)[:-1] + b"\n"


def by_id(part: Part, source: TopicFile | None) -> tuple[bytes, list[int]]:
    """Return the lines of *part* that the file lacks, to be added at its end, and their ids."""
    newest = source.head() if source is not None else 0
    lines, ids = [], []
    for line in split_lines(part.data):
        found = read_line(line, 0, 0)
        if isinstance(found, RecordLine) and found.id > newest:
            lines.append(line)
            ids.append(found.id)
    if lines and (source is None or not source.size):
        lines.insert(0, write_header(part.topic, 0))
    return b"".join(lines), ids


def torn_tail(path: Path) -> tuple[int, bytes]:
    """Return where the last whole line of *path* ends, and what follows."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = end = os.fstat(handle).st_size
        while end:
            begin = max(0, end - 65536)
            cut = os.pread(handle, end - begin, begin).rfind(b"\n")
            if cut >= 0:
                end = begin + cut + 1
                break
            end = begin
        return end, os.pread(handle, size - end, end)
    finally:
        os.close(handle)


def _rest_of_line(there: Pread, at: int) -> bytes:
    found = b""
    while (more := there(at + len(found), 4096)) and b"\n" not in more:
        found += more
    return found + more.partition(b"\n")[0] + more.partition(b"\n")[1]
