"""What is made is private whichever room makes it first; what others can write to is refused."""

from __future__ import annotations

import asyncio
import grp
import os
import pwd
import stat
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import harn
from harn import (
    ManifestError,
    Runtime,
    StorageError,
    durable_rate_limit_acquire,
    pool_create,
)
from harn.cli import invoke
from harn.orchestrator import read_manifest
from harn.orchestrator.manifest_exports import load
from harn.private_files import check_private, make_private_dir, open_private, weakness


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own environment allows nothing; what a command allows ends with its test."""
    monkeypatch.setenv("HARN_ALLOW_INSECURE_STATE", "0")


async def open_pool(state: Path) -> None:
    async with Runtime(state_dir=state, storage="memory://"):
        pool = await pool_create(name="jobs", scope="pipeline", pipeline_id="nightly")
        await pool.submit(lambda: 1)
        await pool.close()


async def open_limiter(state: Path) -> None:
    async with Runtime(state_dir=state, storage="memory://"):
        await durable_rate_limit_acquire(key="calls", limit=1)


async def open_sqlite(state: Path) -> None:
    async with Runtime(state_dir=state) as runtime:
        await runtime.event_log.emit("a", "k", 1)


async def open_files(state: Path) -> None:
    async with Runtime(storage=f"file:///{state}") as runtime:
        await runtime.event_log.emit("a", "k", 1)


ROOMS = [open_pool, open_limiter, open_sqlite, open_files]


@pytest.mark.parametrize("room", ROOMS)
async def test_every_room_makes_private_directories_and_files(
    room: Callable[[Path], Awaitable[None]], tmp_path: Path, no_umask: None
) -> None:
    state = tmp_path / "deep" / "state"

    await room(state)

    for each in [state.parent, state, *state.rglob("*")]:
        mode = stat.S_IMODE(each.stat().st_mode)
        assert mode == (0o700 if each.is_dir() else 0o600), f"{each} {mode:04o}"


def test_directories_are_for_their_owner_whatever_the_umask_takes_away(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        make_private_dir(tmp_path / "deep" / "state")
    finally:
        os.umask(before)

    made = (tmp_path / "deep", tmp_path / "deep" / "state")
    assert [stat.S_IMODE(each.stat().st_mode) for each in made] == [0o700, 0o700]


def test_a_file_is_not_opened_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(OSError):
        open_private(tmp_path / "link", os.O_WRONLY | os.O_CREAT)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("room", ROOMS)
async def test_every_room_refuses_a_directory_that_every_user_can_write_to(
    room: Callable[[Path], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(0o777)

    with pytest.raises(
        StorageError, match=r"can be written by every user \(0777\).*ALLOW_INSECURE"
    ):
        await room(state)
    assert list(state.rglob("*.sqlite")) == []

    monkeypatch.setenv("HARN_ALLOW_INSECURE_STATE", "1")
    await room(state)


async def test_a_store_file_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    await open_sqlite(tmp_path)
    (tmp_path / "events.sqlite").chmod(0o666)

    with pytest.raises(
        StorageError, match=r"the store .*events.sqlite can be written by every user"
    ):
        await open_sqlite(tmp_path)


async def test_a_store_file_of_another_owner_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await open_sqlite(tmp_path)
    path = tmp_path / "events.sqlite"
    real = os.stat

    def of_another(path_: Any, **named: Any) -> Any:
        found = real(path_, **named)
        if Path(path_) != path:
            return found
        return SimpleNamespace(st_mode=found.st_mode, st_uid=os.geteuid() + 4242, st_gid=0)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", of_another)
        with pytest.raises(StorageError, match=r"belongs to user .*run as its owner"):
            await open_sqlite(tmp_path)


async def test_a_store_in_a_directory_that_is_not_the_state_directory_may_be_anywhere(
    tmp_path: Path,
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)  # as /tmp

    async with Runtime(storage=f"sqlite:///{shared}/x.sqlite") as runtime:
        assert (await runtime.event_log.emit("a", "k", 1)).id == 1


@pytest.mark.parametrize(
    ("mode", "gid", "members", "is_weak"),
    [
        (0o600, 0, [], False),
        (0o644, 7, ["other"], False),
        (0o664, 7, [], False),
        (0o664, 7, ["me"], False),
        (0o664, 7, ["other"], True),
        (0o664, 8, [], True),
        (0o602, 7, [], True),
        (0o1777, 7, [], True),
    ],
)
def test_a_group_of_the_owner_alone_is_no_other(
    mode: int, gid: int, members: list[str], is_weak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = SimpleNamespace(st_mode=mode, st_uid=os.geteuid(), st_gid=gid)
    me = SimpleNamespace(pw_name="me", pw_gid=7)
    names = {7: "me", 8: "staff"}
    monkeypatch.setattr(os, "stat", lambda path: about)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
    monkeypatch.setattr(
        grp,
        "getgrgid",
        lambda gid: SimpleNamespace(gr_gid=gid, gr_name=names[gid], gr_mem=members),
    )

    assert (weakness(Path("x"), owned=True) is not None) == is_weak


@pytest.mark.parametrize(("uid", "gid", "is_weak"), [(1000, 1000, False), (1000, 50, True)])
def test_of_users_without_a_name_the_group_of_the_same_number_is_private(
    uid: int, gid: int, is_weak: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = SimpleNamespace(st_mode=0o664, st_uid=uid, st_gid=gid)
    monkeypatch.setattr(os, "stat", lambda path: about)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])

    assert (weakness(Path("x")) is not None) == is_weak


def test_what_does_not_exist_passes(tmp_path: Path) -> None:
    check_private(tmp_path / "none", "store", owned=True)

    assert not (tmp_path / "none").exists()


def test_a_handler_module_that_others_can_write_to_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("beside.py", "onpath_handlers.py"):
        (tmp_path / name).write_text("raise SystemExit('it ran')\n")
        (tmp_path / name).chmod(0o666)
    away = tmp_path / "away"
    away.mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ManifestError, match=r"the handler module .*beside.py can be written"):
        load(tmp_path, "beside.py")
    with pytest.raises(ManifestError, match=r"the handler module .*onpath_handlers.py can be"):
        load(away, "onpath_handlers")


def test_a_package_that_others_can_write_to_is_refused_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "onpath_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it ran')\n")
    (package / "__init__.py").chmod(0o666)
    (package / "handlers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ManifestError, match=r"the handler module .*__init__.py can be written"):
        load(tmp_path / "elsewhere", "onpath_package.handlers")


def test_a_command_refuses_and_its_flag_allows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(open_sqlite(tmp_path / "state"))
    (tmp_path / "state").chmod(0o777)
    manifest = tmp_path / "harn.toml"
    manifest.write_text("")
    manifest.chmod(0o666)
    command = ["log", "verify", "--state-dir", str(tmp_path / "state")]

    assert invoke(command) == 1
    assert "can be written by every user (0777)" in capsys.readouterr().err
    with pytest.raises(ManifestError, match=r"the manifest .* can be written by every user"):
        read_manifest(manifest)

    assert invoke([*command, "--allow-insecure-state"]) == 0
    read_manifest(manifest)


def test_the_doctor_warns_of_what_commands_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    asyncio.run(open_sqlite(state))
    state.chmod(0o777)
    (state / "events.sqlite").chmod(0o666)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "harn.toml").write_text("")
    (tmp_path / "harn.toml").chmod(0o666)

    assert invoke(["doctor", "--state-dir", str(state)]) == 0

    said = capsys.readouterr().out
    assert f"warn  state directory  {state} can be written by every user (0777)" in said
    assert f"{state}/events.sqlite can be written by every user (0666)" in said
    assert "harn.toml can be written by every user (0666)" in said
    assert "chmod o-w" in said


async def test_the_library_is_covered_and_has_the_same_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    async with harn.Runtime(state_dir=tmp_path) as runtime:
        with pytest.raises(StorageError):
            await runtime.event_log.emit("a", "k", 1)
    monkeypatch.setenv("HARN_ALLOW_INSECURE_STATE", "1")
    async with harn.Runtime(state_dir=tmp_path) as runtime:
        assert (await runtime.event_log.emit("a", "k", 1)).id == 1
