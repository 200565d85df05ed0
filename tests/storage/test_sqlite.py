"""What is SQLite's own: its version, its files, its locks, its shared commits, its faults."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import apsw
import pytest

from harn import Runtime, StorageBusy, StorageCorrupt, StorageError, StorageVersion
from harn.storage import Operation, Store, ask, draft
from harn.storage.engines.sqlite import connection_thread, sqlite_driver, writer_thread
from harn.storage.engines.sqlite.sqlite_driver import SqliteDriver
from harn.storage.engines.sqlite.writer_thread import RESERVE, RESERVE_AFTER
from harn.storage.engines.sqlite_version import sqlite_version, wal_is_safe
from harn.storage.leases import LeaseRenewal
from harn.storage.log import append
from harn.testing import FakeClock
from tests.storage.faults import Disk, FaultyVfs, Weather


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "events.sqlite"


@pytest.fixture
async def runtime(path: Path) -> AsyncIterator[Runtime]:
    async with Runtime(storage=f"sqlite:///{path}") as opened:
        yield opened


@pytest.fixture
def weather(monkeypatch: pytest.MonkeyPatch) -> Iterator[Weather]:
    vfs = FaultyVfs(f"faulty-{uuid.uuid4().hex}")
    monkeypatch.setattr(connection_thread, "VFS", vfs.name)
    yield vfs.weather
    vfs.unregister()


async def payloads(url: str, topic: str = "a") -> list[object]:
    async with Runtime(storage=url) as runtime:
        return [event.payload for event in await runtime.event_log.read(topic)]


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 6, 23), True), ((3, 7, 0), False), ((3, 40, 1), False), ((3, 44, 5), False),
        ((3, 44, 6), True), ((3, 45, 0), False), ((3, 49, 2), False), ((3, 50, 6), False),
        ((3, 50, 7), True), ((3, 51, 0), False), ((3, 51, 2), False), ((3, 51, 3), True),
        ((3, 54, 1), True), ((4, 0, 0), True),
    ],
)  # fmt: skip
def test_S22_the_wal_bug_is_known_by_version(version: tuple[int, int, int], safe: bool) -> None:
    assert wal_is_safe(version) is safe


async def test_an_affected_sqlite_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert wal_is_safe(sqlite_version())
    monkeypatch.setattr(sqlite_driver, "sqlite_version", lambda: (3, 50, 6))

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        with pytest.raises(StorageError, match="apsw"):
            runtime.service(Store)


async def test_commits_are_synced_in_wal_mode(runtime: Runtime) -> None:
    def pragmas() -> Operation[tuple[object, ...]]:
        driver = runtime.service(Store).driver
        assert isinstance(driver, SqliteDriver)
        session = driver._writer.session
        assert session is not None
        read = session.connection.pragma
        yield ask("now")
        return read("journal_mode"), read("synchronous"), read("journal_size_limit")

    found = await runtime.service(Store).run(pragmas)

    assert found == ("wal", 2, connection_thread.WAL_BYTES)


def test_S11_files_are_private_whatever_the_umask(path: Path) -> None:
    async def main() -> dict[str, int]:
        async with Runtime(storage=f"sqlite:///{path}") as runtime:
            await runtime.event_log.emit("a", "k", 1)
            await runtime.event_log.read("a")
            found = {each.name: each.stat().st_mode & 0o777 for each in path.parent.iterdir()}
            return {**found, "dir": path.parent.stat().st_mode & 0o777}

    before = os.umask(0)
    try:
        modes = asyncio.run(main())
    finally:
        os.umask(before)

    assert modes == {
        "events.sqlite": 0o600, "events.sqlite-wal": 0o600, "events.sqlite-shm": 0o600,
        "dir": 0o700,
    }  # fmt: skip


async def test_S10_a_symlink_and_a_directory_are_refused(tmp_path: Path) -> None:
    (tmp_path / "real").touch()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dir").mkdir()

    for name, said in (("link", "symbolic link"), ("dir", "not a plain file")):
        async with Runtime(storage=f"sqlite:///{tmp_path}/{name}") as runtime:
            with pytest.raises(StorageError, match=said):
                await runtime.event_log.emit("a", "k", 1)


async def test_a_newer_store_is_refused_and_left_alone(path: Path) -> None:
    path.parent.mkdir()
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE harn_schema (concern TEXT PRIMARY KEY, version INTEGER)")
    connection.execute("INSERT INTO harn_schema VALUES ('log', 99)")
    connection.close()

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        with pytest.raises(StorageVersion, match="newer harn"):
            await runtime.event_log.emit("a", "k", 1)

    tables = apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema").fetchall()
    assert ("events",) not in tables


async def test_a_lock_held_too_long_is_storage_busy_and_heals(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}?busy_timeout=100ms") as runtime:
        await runtime.event_log.emit("a", "k", 1)
        other = apsw.Connection(str(path))
        other.execute("BEGIN IMMEDIATE")

        with pytest.raises(StorageBusy, match="another process"):
            await runtime.event_log.emit("a", "k", "busy")
        assert [e.payload for e in await runtime.event_log.read("a")] == [1]
        other.execute("ROLLBACK")
        other.close()

        assert (await runtime.event_log.emit("a", "k", 2)).id == 2


async def test_a_commit_that_fails_fails_every_operation_in_it(
    path: Path, weather: Weather
) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        store = runtime.service(Store)
        await runtime.event_log.emit("a", "k", "before")

        with weather.storm("-wal", xSync=apsw.IOError):
            results = await asyncio.gather(
                *(store.run(partial(append, [draft("a", "k", n)])) for n in range(5)),
                return_exceptions=True,
            )

        assert all(isinstance(result, StorageError) for result in results)
        assert (await runtime.event_log.emit("a", "k", "after")).payload == "after"
        found = [event.payload for event in await runtime.event_log.read("a")]
    assert found[0] == "before"
    assert found[-1] == "after"
    assert await payloads(f"sqlite:///{path}") == found


@pytest.mark.parametrize(
    ("call", "error"),
    [("xWrite", apsw.FullError), ("xWrite", apsw.IOError), ("xSync", apsw.IOError),
     ("xRead", apsw.IOError)],
)  # fmt: skip
async def test_G13_a_disk_that_fails_and_heals(
    path: Path, weather: Weather, call: str, error: type[apsw.Error]
) -> None:
    acknowledged = []
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        for round_ in range(5):
            acknowledged.append((await runtime.event_log.emit("a", "k", round_)).payload)
            with weather.storm("", **{call: error}):
                for n in range(3):
                    try:
                        event = await runtime.event_log.emit("a", "k", f"storm {round_} {n}")
                    except StorageError:
                        continue
                    acknowledged.append(event.payload)

        acknowledged.append((await runtime.event_log.emit("a", "k", "healed")).payload)
        found = [event.payload for event in await runtime.event_log.read("a")]

    assert [each for each in found if each in acknowledged] == acknowledged
    assert len(set(map(str, found))) == len(found)
    check = apsw.Connection(str(path)).execute("PRAGMA integrity_check").fetchall()
    assert check == [("ok",)]


async def test_a_file_that_is_no_database_is_corrupt(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is not a database, whatever its name says" * 100)

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        with pytest.raises(StorageCorrupt):
            await runtime.event_log.emit("a", "k", 1)


async def test_E9_a_broken_page_harms_only_its_own_records(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        await runtime.event_log.append([draft("a", "k", [n, "x" * 1000]) for n in range(300)])
    damaged = bytearray(path.read_bytes())
    middle = len(damaged) // 2 // 4096 * 4096
    damaged[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(damaged)

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        assert await runtime.service(Store).check() != []
        found = [event.payload[0] for event in await runtime.event_log.read("a")]

        lost = [each.id or 0 for each in runtime.event_log.damaged]
        assert 1 <= len(lost) <= 10
        assert sorted([*found, *(id - 1 for id in lost)]) == list(range(300))
        assert (await runtime.event_log.emit("b", "k", 1)).id == 1


async def test_a_wal_file_removed_under_us_loses_nothing(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        for n in range(10):
            await runtime.event_log.emit("a", "k", n)
        os.unlink(f"{path}-wal")

        for n in range(10, 15):
            await runtime.event_log.emit("a", "k", n)
        async with Runtime(storage=f"sqlite:///{path}") as other:
            await other.event_log.emit("a", "k", 15)
        await runtime.event_log.emit("a", "k", 16)

    assert await payloads(f"sqlite:///{path}") == list(range(17))


async def test_the_wal_is_lengthened_ahead_and_a_crash_reads_it_well(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        for n in range(4 * RESERVE_AFTER):
            await runtime.event_log.emit("a", "k", n)
        assert RESERVE < os.stat(f"{path}-wal").st_size <= 2 * RESERVE
        copy = path.parent / "as-after-a-crash.sqlite"
        for tail in ("", "-wal"):
            shutil.copy(f"{path}{tail}", f"{copy}{tail}")

    assert await payloads(f"sqlite:///{copy}") == list(range(4 * RESERVE_AFTER))


async def test_E2_offsets_stay_right_whichever_process_writes_and_whatever_is_undone(
    path: Path,
) -> None:
    def undone() -> Operation[None]:
        yield from append([draft("a", "k", "undone")])
        raise LookupError

    url = f"sqlite:///{path}"
    async with Runtime(storage=url) as one, Runtime(storage=url) as two:
        for n in range(0, 30, 3):
            assert (await one.event_log.emit("a", "k", n)).id == n + 1
            with pytest.raises(LookupError):
                await one.event_log.store.run(undone)
            assert (await one.event_log.emit("a", "k", n + 1)).id == n + 2
            assert (await two.event_log.emit("a", "k", n + 2)).id == n + 3
            if n == 15:
                await two.event_log.trim("a", keep=0)

    assert await payloads(url) == list(range(18, 30))


async def test_answers_come_back_without_an_eventfd(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)

    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        assert (await runtime.event_log.emit("a", "k", 1)).id == 1
        assert runtime.event_log.store.driver._handover._wakeup.fd is None  # type: ignore[attr-defined]


async def test_the_wal_stays_bounded(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        for _ in range(40):
            await runtime.event_log.append([draft("a", "k", "x" * 50_000) for _ in range(20)])
            await runtime.event_log.read("a", limit=5)

        assert os.stat(f"{path}-wal").st_size <= 64 * 1024 * 1024


async def test_the_weaker_class_is_named_and_synced_soon(path: Path) -> None:
    async with Runtime(storage=f"sqlite:///{path}?durability=normal") as runtime:
        store = runtime.service(Store)
        await runtime.event_log.emit("a", "k", 1)
        assert store.durability == "normal"
        driver = store.driver
        assert isinstance(driver, SqliteDriver)
        assert driver._writer._unsynced
        await store.run(lambda: append([draft("a", "k", 2)]), durability="full")
        assert not driver._writer._unsynced


@pytest.mark.parametrize("clock", [None, FakeClock()], ids=["real time", "a fake clock"])
async def test_47_an_operation_that_writes_nothing_syncs_what_was_written_before(
    path: Path, weather: Weather, clock: FakeClock | None
) -> None:
    async with Runtime(storage=f"sqlite:///{path}", clock=clock) as runtime:
        store = runtime.service(Store)
        for _ in range(2):
            await store.run(lambda: append([draft("a", "k", 1)]), durability="normal")
            before = weather.calls["xSync"]

            await store.run(nothing, durability="full")

            assert weather.calls["xSync"] > before


async def test_47_an_idle_store_syncs_what_the_weaker_class_wrote(
    path: Path, weather: Weather, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_thread, "SYNC_WITHIN", 0.01)
    async with Runtime(storage=f"sqlite:///{path}") as runtime:
        store = runtime.service(Store)
        await store.run(lambda: append([draft("a", "k", 1)]), durability="full")
        before = weather.calls["xSync"]

        await store.run(lambda: append([draft("a", "k", 2)]), durability="normal")
        assert isinstance(store.driver, SqliteDriver)
        while store.driver._writer._unsynced:
            await asyncio.sleep(0.005)

        assert weather.calls["xSync"] > before


async def test_a_lease_that_is_renewed_needs_no_sync(path: Path, weather: Weather) -> None:
    clock = FakeClock()
    async with Runtime(storage=f"sqlite:///{path}", clock=clock, seed=0) as runtime:
        store = runtime.service(Store)
        renewed: list[object] = []

        def renew() -> Operation[bool]:
            yield from append([draft("a", "k", 1)])
            renewed.append(1)
            return True

        await store.run(renew)
        before = weather.calls["xSync"]
        LeaseRenewal(
            runtime,
            "x",
            store,
            renew,
            every=3,
            ttl=10,
            since=clock.monotonic(),
            lost=renewed.append,
        )
        await clock.advance(10)

        assert len(renewed) == 4
        assert isinstance(store.driver, SqliteDriver)
        assert not store.driver._writer._unsynced
        assert weather.calls["xSync"] == before


def nothing() -> Operation[None]:
    yield from ()


FORK = """
import asyncio, os, sys
from harn import Runtime, StorageError

async def main():
    async with Runtime(storage=sys.argv[1]) as runtime:
        await runtime.event_log.emit("a", "k", 1)
        store = runtime.event_log.store  # the runtime itself is refused in the child before it
        child = os.fork()
        if not child:
            try:
                store.driver.submit(lambda: None)
            except StorageError as error:
                print(error)
                sys.stdout.flush()
                os._exit(7)
            os._exit(8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        await runtime.event_log.emit("a", "k", 2)
        print([e.payload for e in await runtime.event_log.read("a")])

asyncio.run(main())
"""


def test_a_fork_poisons_the_childs_handle_and_leaves_the_parents(lasting_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK, lasting_url],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert "before a fork" in done.stdout, done.stderr
    assert "[1, 2]" in done.stdout


READ_ONLY = """
import asyncio, os, sys
from harn import Runtime, StorageError

async def main():
    async with Runtime(storage=sys.argv[1]) as runtime:
        runtime.event_log.store
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            await runtime.event_log.emit("a", "k", 1)
        except StorageError as error:
            print("refused:", error)
        os.seteuid(os.getuid())
        os.chmod(sys.argv[2], 0o700)
        print((await runtime.event_log.emit("a", "k", 2)).id)

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_read_only_directory_is_told_and_heals(kind: str, tmp_path: Path) -> None:
    where = tmp_path / "state"
    where.mkdir()
    where.chmod(0o500)

    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, f"{kind}:///{where}/x", str(where)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert "refused:" in done.stdout, done.stderr
    assert done.stdout.endswith("1\n")


@pytest.mark.parametrize("seed", range(6))
def test_E1_power_loss_takes_no_acknowledged_record(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    power_loss(seed, tmp_path, monkeypatch)


@pytest.mark.stress
def test_G2_power_loss_hundreds_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_least: Callable[[int], int]
) -> None:
    for seed in range(at_least(20)):
        with monkeypatch.context() as patch:
            power_loss(1000 + seed, tmp_path / str(seed), patch)


def power_loss(seed: int, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write, cut the power at a random sync, look at what a disk may hold, go on there."""
    chance = random.Random(seed)
    disk = Disk()
    vfs = FaultyVfs(f"forgetful-{uuid.uuid4().hex}", disk)
    monkeypatch.setattr(connection_thread, "VFS", vfs.name)
    monkeypatch.setattr(writer_thread, "CHECKPOINT_PAGES", chance.choice([3, 10, 1000]))
    before, after = home / "before", home / "after"
    acknowledged: list[int] = []
    images: dict[str, bytes] = {}

    async def write() -> None:
        async with Runtime(storage=f"sqlite:///{before}/x.sqlite") as runtime:
            for n in range(chance.randrange(5, 60)):
                await runtime.event_log.emit("a", "k", n)
                acknowledged.append(n)
            hanging = [
                asyncio.ensure_future(runtime.event_log.emit("a", "k", 1000 + n))
                for n in range(chance.randrange(3))
            ]
            if hanging:
                await asyncio.wait(hanging, timeout=chance.random() * 0.002)
            done = [task.result().payload for task in hanging if task.done()]
            images.update(disk.after_power_loss(chance))
            acknowledged.extend(done)
            await asyncio.wait(hanging) if hanging else None

    asyncio.run(write())
    vfs.unregister()
    monkeypatch.setattr(connection_thread, "VFS", None)
    after.mkdir()
    for name, data in images.items():
        if not name.endswith("-shm"):
            (after / Path(name).name).write_bytes(data)
    found = asyncio.run(payloads(f"sqlite:///{after}/x.sqlite"))

    assert set(acknowledged) <= set(found), f"seed {seed}"
    assert len(found) == len(set(found))
    check = apsw.Connection(f"{after}/x.sqlite").execute("PRAGMA integrity_check").fetchall()
    assert check == [("ok",)]
