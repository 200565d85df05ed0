"""Repairing a checksummed line with one wrong byte: the checksum tells which byte it is."""

from __future__ import annotations

import zlib

from harn.storage.jsonl import SEAL, TAIL


def corrected(line: bytes) -> bytes | None:
    """Return *line* with its one wrong byte repaired; None if no single byte breaks its seal.

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
