"""The manifest's setup: what a service and a command say when it fails."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harn import ManifestError, Runtime
from harn.cli import invoke
from harn.orchestrator import Service
from tests.orchestrator.processes import serving

MANIFEST = """
[exports]
handlers = "handlers.py"
[orchestrator]
setup = "handlers::{setup}"
"""
HANDLERS = """
import asyncio, sys
import harn

def raises():
    raise ValueError("no database")

async def exits():
    await harn.pool_create(name="work")
    sys.exit(3)

async def awaits_what_is_cancelled():
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task

async def hangs():
    await asyncio.Event().wait()
"""
FAILING = [
    ("raises", "ValueError: no database"),
    ("exits", "SystemExit: 3"),
    ("awaits_what_is_cancelled", "CancelledError"),
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(place: Path, setup: str) -> None:
    (place / "harn.toml").write_text(MANIFEST.format(setup=setup))


@pytest.mark.parametrize(("setup", "reason"), FAILING)
async def test_a_start_whose_setup_fails_names_it(place: Path, setup: str, reason: str) -> None:
    write(place, setup)
    async with Runtime(state_dir=place / "state") as runtime:
        service = Service(runtime, place / "harn.toml")

        with pytest.raises(ManifestError) as failed:
            await service.start()

        assert str(failed.value) == f"the setup 'handlers::{setup}' failed: {reason}"
        assert not await service.is_ready()


async def test_a_start_that_is_cancelled_in_its_setup_ends_in_the_cancel(place: Path) -> None:
    write(place, "hangs")
    async with Runtime(state_dir=place / "state") as runtime:
        starting = asyncio.ensure_future(Service(runtime, place / "harn.toml").start())
        await asyncio.sleep(0)

        starting.cancel()
        await asyncio.wait((starting,))

        assert starting.cancelled()


@pytest.mark.parametrize(("setup", "reason"), FAILING)
def test_a_command_whose_setup_fails_says_so_in_one_line(
    place: Path, capsys: pytest.CaptureFixture[str], setup: str, reason: str
) -> None:
    write(place, setup)

    assert invoke(["orchestrator", "queue", "drain", "q", "--state-dir", "state"]) == 1

    said = capsys.readouterr().err
    assert said == (
        f"error: the setup 'handlers::{setup}' failed: {reason} "
        "(HARN_DEBUG=1 shows the traceback)\n"
    )


def test_the_traceback_of_a_setup_is_shown_on_request(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(place, "raises")
    monkeypatch.setenv("HARN_DEBUG", "1")

    assert invoke(["orchestrator", "queue", "drain", "q", "--state-dir", "state"]) == 1
    assert "handlers.py" in capsys.readouterr().err


def test_a_service_ends_where_its_setup_awaits_what_is_cancelled(place: Path) -> None:
    write(place, "awaits_what_is_cancelled")
    with serving(place) as process:
        assert process.ends() == 1
        process.close()

    assert "the setup 'handlers::awaits_what_is_cancelled' failed" in process.lines[-1]
