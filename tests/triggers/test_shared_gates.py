"""Several real processes on one store share a gate, a schedule, a stream, also when one dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = """
    import asyncio, os, sys, time
    from harn import Runtime, trigger_fire, trigger_register

    url, ledger, me = sys.argv[1:4]

    def write(line):
        fd = os.open(ledger, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
        os.write(fd, (line + chr(10)).encode())
        os.close(fd)

    async def handler(event):
        n = event.get("provider_payload.payload")
        write(f"{time.monotonic_ns()} + {me}:{n}")
        if me == "dies" and n == 1:
            os.kill(os.getpid(), 9)
        await asyncio.sleep(0.03)
        write(f"{time.monotonic_ns()} - {me}:{n}")

    async def main():
        async with Runtime(storage=url):
            await trigger_register(id="t", kind="channel.emit", provider="channel", match={},
                                   handler=handler, concurrency={"max": 2}, retry={"max": 1})
            done = await asyncio.gather(*(trigger_fire("t", n) for n in range(6)))
            assert {each.status for each in done} == {"dispatched"}, done

    asyncio.run(main())
"""


@pytest.mark.parametrize("third", ["three", pytest.param("dies", marks=pytest.mark.stress)])
@pytest.mark.parametrize("engine", ["sqlite", "file", "postgres"])
def test_a_cap_holds_across_processes_even_when_one_is_killed(
    engine: str, third: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = {"sqlite": f"sqlite:///{tmp_path}/x.sqlite", "file": f"file:///{tmp_path}/log"}.get(
        engine
    )
    url = url or request.getfixturevalue("postgres_url")
    script, ledger = tmp_path / "script.py", tmp_path / "ledger"
    script.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, str(script), url, str(ledger)]
    processes = {
        name: subprocess.Popen([*command, name], stderr=subprocess.PIPE, text=True)
        for name in ("one", "two", third)
    }
    said = {name: process.communicate(timeout=80)[1] for name, process in processes.items()}

    assert [processes[name].returncode for name in ("one", "two")] == [0, 0], said
    assert processes[third].returncode == (0 if third == "three" else -signal.SIGKILL), said
    running: dict[str, int] = {}
    began: list[str] = []
    for line in sorted(ledger.read_text().splitlines(), key=lambda line: int(line.split()[0])):
        at, sign, name = line.split()
        if sign == "+":
            began.append(name)
            running[name] = int(at)
        else:
            running.pop(name, None)
        # What the killed one held stays held until it has been silent for half a minute.
        for held, since in list(running.items()):
            if held.startswith("dies") and int(at) - since > 25e9:
                del running[held]
        assert len(running) <= 2, line
    assert {name for name in began if not name.startswith(third)} == {
        f"{who}:{n}" for who in ("one", "two") for n in range(6)
    }
