"""Bytes a little different from good ones: flipped, cut, doubled, spliced, or replaced."""

from __future__ import annotations

import random

WORDS = [
    *(b"null", b"true", b"-1", b"1e999", b"NaN", b"9" * 400, b'""', b"[]", b"{}", b"\\ud800"),
    *(b"\x00", b"\xff\xfe", b"\n", b"\r\n", b"\xe2\x80\xa8", b"[" * 3000, b'{"a":' * 2000, b"'''"),
]


def mutated(good: bytes, rng: random.Random) -> bytes:
    """Return *good* with one to four changes."""
    data = bytearray(good)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:]
            case 2:
                data[at:at] = rng.choice(WORDS)
            case 3:
                end = min(len(data), at + rng.randrange(1, 40))
                data[at:end] = rng.choice(WORDS)
            case 4:
                end = min(len(data), at + rng.randrange(1, 60))
                data[at:at] = data[at:end]
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 6))
    return bytes(data)
