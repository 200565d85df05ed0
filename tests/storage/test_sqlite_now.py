"""`try_now`: a brief operation on the loop's own thread, or nothing at all."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from harn import Runtime
from harn.storage import Operation, Store, ask, limits
from harn.storage.engines.sqlite import writer_thread
from harn.storage.engines.sqlite.sqlite_driver import SqliteDriver


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.sqlite"


@pytest.fixture
async def driver(path: Path) -> AsyncIterator[SqliteDriver]:
    """A file of the weaker class, opened and written to by its writer's thread."""
    async with Runtime(storage=f"sqlite:///{path}?durability=normal") as runtime:
        store = runtime.service(Store)
        assert isinstance(store.driver, SqliteDriver)
        await store.run(one_ticket)
        yield store.driver


def one_ticket() -> Operation[int]:
    return limits.take_tickets(1)


async def test_it_runs_on_the_callers_thread(driver: SqliteDriver) -> None:
    ran_on = []

    def here() -> Operation[int]:
        ran_on.append(threading.current_thread())
        return (yield from one_ticket())

    assert driver.try_now(here) == 2

    assert ran_on == [threading.current_thread()]


async def test_each_look_finds_it(driver: SqliteDriver, path: Path) -> None:
    driver.try_now(one_ticket)

    assert apsw.Connection(str(path)).execute("SELECT ticket FROM limit_counter").get == 2


async def test_an_unopened_file_is_left_to_the_writer(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}?durability=normal") as runtime:
        assert runtime.service(Store).driver.try_now(one_ticket) is None

    assert not path.exists()


async def test_a_store_that_syncs_each_commit_never_does(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        store = runtime.service(Store)
        await store.run(one_ticket, durability="normal")

        assert store.driver.try_now(one_ticket) is None


async def test_no_caller_waits_for_another_processs_lock(driver: SqliteDriver, path: Path) -> None:
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")

    assert driver.try_now(one_ticket) is None

    other.execute("COMMIT")
    assert driver.try_now(one_ticket) == 2


async def test_the_writers_own_batch_is_not_disturbed(driver: SqliteDriver) -> None:
    with driver._writer._turn:
        assert driver.try_now(one_ticket) is None


async def test_what_turns_out_long_is_undone(driver: SqliteDriver) -> None:
    def long() -> Operation[int]:
        for _ in range(writer_thread.BRIEF):
            yield ask("limit_take_tickets", count=1)
        return (yield from one_ticket())

    assert driver.try_now(long) is None

    assert driver.try_now(one_ticket) == 2


async def test_what_fails_is_undone_and_left_to_the_writer(driver: SqliteDriver) -> None:
    def failing() -> Operation[int]:
        yield ask("limit_take_tickets", count=1)
        raise ValueError("no")

    assert driver.try_now(failing) is None
    with pytest.raises(ValueError, match="no"):
        await driver.submit(failing)

    assert driver.try_now(one_ticket) == 2


async def test_an_interrupt_undoes_it_too(driver: SqliteDriver) -> None:
    def interrupted() -> Operation[int]:
        yield ask("limit_take_tickets", count=1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        driver.try_now(interrupted)

    assert driver.try_now(one_ticket) == 2


async def test_a_long_wal_is_left_to_the_writer_which_begins_it_again(
    driver: SqliteDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "CHECKPOINT_PAGES", 40)
    while driver.try_now(one_ticket) is not None:
        pass
    assert driver._writer._wal_pages >= 40

    await driver.submit(one_ticket)

    assert driver._writer._wal_pages < 40
    assert driver.try_now(one_ticket)


async def test_a_sync_that_is_due_is_left_to_the_writer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread.Writer, "idle", lambda self: None)
    monkeypatch.setattr(writer_thread, "SYNC_WITHIN", 0.0)
    async with Runtime(storage=f"sqlite:///{path}?durability=normal") as runtime:
        driver = runtime.service(Store).driver
        assert isinstance(driver, SqliteDriver)
        await driver.submit(one_ticket)

        assert driver.try_now(one_ticket) is None

        assert driver._writer._unsynced
        await driver.submit(one_ticket)  # traffic that never pauses is synced all the same
        assert not driver._writer._unsynced


async def test_files_that_were_moved_away_are_left_to_the_writer(
    driver: SqliteDriver, path: Path
) -> None:
    Path(f"{path}-wal").unlink()

    assert driver.try_now(one_ticket) is None

    assert await driver.submit(one_ticket) == 2
