"""Damage in a directory of topic files: named with its place, and its bytes kept aside.

What is damaged is never thrown away. Its bytes go to `<file>.damaged`, one JSON object a line
(`{"offset": ..., "reason": ..., "base64": ...}`), before the file itself is mended.
"""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harn.private_files import open_private, sync_dir

SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
"""The end of a sealed line, without its newline."""
TAIL = len(b',"crc":"00000000"}\n')


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that cannot be trusted: where in the file they begin, and why."""

    offset: int
    reason: str
    data: bytes


def set_aside(path: Path, found: Sequence[Damage]) -> None:
    """Keep the bytes of what was *found* in *path* in a file beside it, durably."""
    aside = path.with_name(f"{path.name}.damaged")
    handle = open_private(aside, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with open(handle, "ab") as side:
        for each in found:
            kept = base64.b64encode(each.data).decode()
            note = {"offset": each.offset, "reason": each.reason, "base64": kept}
            side.write(json.dumps(note).encode() + b"\n")
        side.flush()
        os.fsync(handle)
    sync_dir(path.parent)


def count_aside(path: Path) -> int:
    """Return how many pieces of *path* were set aside."""
    try:
        return path.with_name(f"{path.name}.damaged").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def corrected(line: bytes) -> bytes | None:
    """Return *line* with the one byte put right that breaks its seal; None if there is none.

    Where more than one byte was hit, one line in some ten thousand is put right to something
    else, so what it says must be confirmed by other means.
    """
    body, tail = line[:-TAIL], line[-TAIL:]
    right = b',"crc":"%08x"}\n' % zlib.crc32(body)
    if len(tail) == TAIL and sum(a != b for a, b in zip(tail, right, strict=True)) == 1:
        return body + right
    found = SEAL.match(tail)
    if found is None:
        return None
    # CRC-32 is linear: the difference that a wrong byte makes is that of the byte alone, moved
    # on by the bytes that follow. So move the difference back, and see where it is one byte's.
    difference = int(found[1], 16) ^ zlib.crc32(body)
    for place in range(len(body) - 1, -1, -1):
        if (change := _CHANGES.get(difference)) is not None:
            byte = body[place] ^ change
            return body[:place] + bytes((byte,)) + body[place + 1 :] + tail
        last = _LAST[difference >> 24]
        difference = (difference ^ _TABLE[last]) << 8 | last
    return None


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0xEDB88320 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _crc_table()
_CHANGES = {crc: byte for byte, crc in enumerate(_TABLE)}
_LAST = {crc >> 24: byte for byte, crc in enumerate(_TABLE)}
