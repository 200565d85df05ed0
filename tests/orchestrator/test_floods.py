"""Floods: forged requests, slow connections, bad signatures by the thousand."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from harn import event_log_read, topics
from harn.orchestrator import intake as intake_module
from harn.triggers import SCHEMES, Scheme, sign
from tests.orchestrator.served import NEW, Site, site

Request = tuple[dict[str, str], bytes]


@pytest.fixture(autouse=True)
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "REFILL_PER_S", 1e9)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_S4_mutations_of_genuine_requests_are_all_refused(
    scheme: Scheme, at_least: Callable[[int], int]
) -> None:
    chance = random.Random(f"forged {scheme}")
    async with site() as served:
        for number in range(at_least(250)):
            body = json.dumps({"n": number, "note": f"a.{served.now()}.b"}).encode()
            genuine = sign(scheme, NEW, body, served.now(), f"msg_{number}"), body
            headers, sent = mutated(chance, scheme, genuine, served.now())
            answer = await served.client.post(f"/hooks/{scheme}", content=sent, headers=headers)
            assert answer.status_code == 401, (headers, sent)
            assert answer.json() == {"error": "unauthorized"}

    assert served.seen == []


def mutated(chance: random.Random, scheme: Scheme, genuine: Request, now: int) -> Request:
    """Return *genuine* with a change somewhere in what is signed or in the signature."""
    headers, body = dict(genuine[0]), genuine[1]
    name = chance.choice(sorted(headers))
    value = headers[name]
    at = chance.randrange(len(value))
    kind = chance.randrange(8)
    if kind == 0:
        place = chance.randrange(len(body))
        return headers, body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :]
    if kind == 1:
        return headers, body[: chance.randrange(len(body))]
    if kind == 2:
        return headers, body + chance.choice([b" ", b"\n", b"\0", b"{}"])
    if kind == 3:
        headers[name] = value[:at] + ("0" if value[at] != "0" else "1") + value[at + 1 :]
    elif kind == 4:
        headers[name] = value[:at]
    elif kind == 5:
        del headers[name]
    elif kind == 6:
        headers = sign(scheme, chance.randbytes(24), body, now, "msg_1")
    elif scheme == "standard":  # the splice: another reading of what was signed
        front, rest = body.split(b".%d." % now, 1)
        headers["webhook-id"] += f".{now}.{front.decode()}"
        return headers, rest
    else:
        return headers, f"{now}.".encode() + body
    return headers, body


async def test_S15_genuine_requests_are_answered_while_200_slow_ones_hang() -> None:
    head = b"POST /hooks/github HTTP/1.1\r\nHost: x\r\n"
    async with site() as served:
        alone = await timed(served, range(100))
        slow = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(200)]
        for number, (_, writer) in enumerate(slow):
            writer.write(head + (b"X-Slow: " if number % 2 else b"Content-Length: 100\r\n\r\n{"))
        beside = await timed(served, range(100, 200))
        hanging = sum(not reader.at_eof() for reader, _ in slow)
        for _, writer in slow:
            writer.close()
        await served.settled()

    assert hanging == 200
    assert len(served.seen) == 200
    for name, took in (("alone", alone), ("beside 200 slow connections", beside)):
        print(f"{name}: median {took[50]:.1f} ms, of 100 the 95th {took[94]:.1f} ms")


async def timed(served: Site, numbers: range) -> list[float]:
    """Send a genuine request for each of *numbers*; return how long each took, in milliseconds."""
    took = []
    for n in numbers:
        begun = time.perf_counter()
        assert (await served.send("github", {"n": n})).status_code == 202
        took.append(1000 * (time.perf_counter() - begun))
    return sorted(took)


async def test_S25_bad_signatures_grow_neither_memory_nor_the_store(
    tmp_path: Path, at_least: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_module, "MOST_SENDERS", 100)
    count = at_least(2000)
    async with site(f"sqlite:///{tmp_path}/x.sqlite") as served:
        await flood(served, 0, 500)  # what is made once is there, the store's files too
        await served.runtime.event_log.flush()
        before, size = held(), stored(tmp_path)
        tracemalloc.start()
        await flood(served, 500, count)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        await served.runtime.event_log.flush()
        told = await event_log_read(topics.TRIGGER_INTAKE)
        refused = served.intake.answers["401"]
        growth, larger = held() - before, stored(tmp_path) - size

    assert (refused, served.seen) == (500 + count, [])
    assert grown < 64 * 1024
    assert len(told) <= 2 + count // 10_000  # once a minute
    assert larger < 64 * 1024
    print(f"{count:,} bad signatures: {grown:,} bytes held, {growth} KiB RSS, {larger:,} stored")


async def flood(served: Site, first: int, count: int) -> None:
    """Send *count* requests with bad signatures, each from another sender."""
    for number in range(first, first + count):
        scheme = SCHEMES[number % 4]
        body = b'{"n":%d}' % number
        signed = sign(scheme, b"another's key...", body, served.now(), f"msg_{number}")
        assert served.intake.admit(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}") is None
        headers = {name: (value,) for name, value in signed.items()}
        reply = await served.intake.receive(f"/hooks/{scheme}", headers, body)
        assert reply.status == 401


def held() -> int:
    """Return the process's resident memory, in KiB."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return next(int(li.split()[1]) for li in status.read_text().splitlines() if "VmRSS" in li)


def stored(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
