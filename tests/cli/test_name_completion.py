"""Names that the shell completes: read from the store and the manifest, silent without them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

import harn
from harn import Runtime, pool_create, worker_queue
from harn.cli.commands import harn as root

MANIFEST = """
[exports]
handlers = "handlers.py"
[[triggers]]
id = "nightly"
kind = "cron"
provider = "cron"
schedule = "0 2 * * *"
handler = "handlers::work"
"""


def completed(line: str) -> list[str]:
    """Return what the shell offers for the last word of *line*."""
    *words, typed = line.split(" ")
    found = ShellComplete(root, {}, "harn", "_HARN_COMPLETE").get_completions(words, typed)
    return [each.value for each in found]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def fill() -> None:
    for name in ("reviews", "reports", "mail"):
        await worker_queue(name).enqueue(1)


def test_queues_of_every_engine_complete(storage_url: str, place: Path) -> None:
    if storage_url.startswith("memory"):
        pytest.skip("another process cannot read it")

    async def main() -> None:
        async with Runtime(storage=storage_url):
            await fill()

    asyncio.run(main())

    assert completed(f"orchestrator queue drain --storage {storage_url} re") == [
        "reports",
        "reviews",
    ]
    assert completed(f"orchestrator queue --storage {storage_url} job m") == ["mail"]
    assert completed(f"worker app --storage {storage_url} --queue m") == ["mail"]
    assert "worker.mail" in completed(f"log tail --storage {storage_url} worker.m")


def test_pools_and_queues_complete_the_filter_of_top(place: Path) -> None:
    async def main() -> None:
        await fill()
        await pool_create(name="review-pool", scope="pipeline", pipeline_id="nightly")

    harn.run(main, state_dir=place)

    assert completed(f"top --state-dir {place} --filter rev") == ["review-pool", "reviews"]


def test_triggers_of_the_manifest_complete(place: Path) -> None:
    (place / "harn.toml").write_text(MANIFEST)
    (place / "handlers.py").write_text("def work(event): ...")

    assert completed("orchestrator fire ni") == ["nightly"]
    assert completed("orchestrator replay event --trigger n") == ["nightly"]


@pytest.mark.parametrize(
    "line",
    ["orchestrator queue drain ", "log tail ", "orchestrator fire ", "top --filter "],
)
def test_without_a_store_nothing_is_offered_printed_or_made(
    line: str, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert completed(line) == []

    assert capfd.readouterr() == ("", "")
    assert not list(place.iterdir())
