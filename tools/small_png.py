"""Make a screenshot smaller: at most 256 colours, which is enough for text on flat colours."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def small_png(picture: bytes) -> bytes:
    """Return *picture*, a PNG of 8-bit RGB, with a palette of its most frequent colours."""
    parts = list(_parts(picture))
    width, height = struct.unpack(">II", dict(parts)[b"IHDR"][:8])
    raw = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
    rows = list(_rows(raw, 3 * width, height))
    pixels = [[row[at : at + 3] for at in range(0, len(row), 3)] for row in rows]
    palette = [colour for colour, _ in Counter(p for row in pixels for p in row).most_common(256)]
    places = {colour: place for place, colour in enumerate(palette)}
    lines = bytearray()
    for row in pixels:
        lines.append(0)
        lines += bytes(_place(pixel, palette, places) for pixel in row)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    found = [(b"IHDR", header), (b"PLTE", b"".join(palette))]
    found += [(b"IDAT", zlib.compress(bytes(lines), 9)), (b"IEND", b"")]
    return SIGNATURE + b"".join(_part(kind, data) for kind, data in found)


def _parts(picture: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(picture):
        (size,) = struct.unpack(">I", picture[at : at + 4])
        yield picture[at + 4 : at + 8], picture[at + 8 : at + 8 + size]
        at += 12 + size


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _rows(raw: bytes, size: int, height: int) -> Iterator[bytes]:
    """Undo the filter of each row."""
    above = bytes(size)
    for number in range(height):
        at = number * (size + 1)
        how, row = raw[at], bytearray(raw[at + 1 : at + 1 + size])
        for place in range(size) if how else ():
            left = row[place - 3] if place >= 3 else 0
            corner = above[place - 3] if place >= 3 else 0
            up = above[place]
            guess = (0, left, up, (left + up) // 2, _paeth(left, up, corner))[how]
            row[place] = (row[place] + guess) & 255
        above = bytes(row)
        yield above


def _paeth(left: int, up: int, corner: int) -> int:
    guess = left + up - corner
    return min((left, up, corner), key=lambda each: abs(guess - each))


def _place(pixel: bytes, palette: list[bytes], places: dict[bytes, int]) -> int:
    """Return the place of the colour that is nearest to *pixel*."""
    if pixel not in places:
        nearest = min(
            palette, key=lambda each: sum((a - b) ** 2 for a, b in zip(each, pixel, strict=True))
        )
        places[pixel] = places[nearest]
    return places[pixel]
