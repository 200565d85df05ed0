"""A file layer for SQLite that fails when told to, and one that forgets what was not synced."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

SECTOR = 512


@dataclass
class Weather:
    """What goes wrong right now: the error to raise for a call (`xSync`, `xWrite` ...)."""

    failing: dict[str, type[apsw.Error]] = field(default_factory=dict)
    only: str = ""
    """The end of the names of the files it happens to."""
    calls: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def storm(self, only: str = "", **failing: type[apsw.Error]) -> Iterator[None]:
        self.failing, self.only = failing, only
        try:
            yield
        finally:
            self.failing = {}

    def pass_through(self, call: str, name: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        if call in self.failing and name.endswith(self.only):
            raise self.failing[call](f"on purpose: {call}")


@dataclass
class Disk:
    """What a disk really holds: what was synced, and a list of what was not."""

    synced: dict[str, bytearray] = field(default_factory=dict)
    pending: dict[str, list[tuple[int, bytes | None]]] = field(default_factory=dict)

    def write(self, name: str, data: bytes | None, offset: int) -> None:
        self.pending.setdefault(name, []).append((offset, data))

    def sync(self, name: str) -> None:
        image = self.synced.setdefault(name, bytearray())
        for offset, data in self.pending.pop(name, []):
            _apply(image, offset, data)

    def after_power_loss(self, chance: random.Random) -> dict[str, bytes]:
        """The files as they may be found: any of the unsynced writes, in part or not at all."""
        found = {}
        for name in {*self.synced, *self.pending}:
            image = bytearray(self.synced.get(name, b""))
            for offset, data in self.pending.get(name, []):
                fate = chance.random()
                if fate < 0.4:
                    continue
                if data is not None and fate < 0.6:  # torn at a sector
                    data = data[: SECTOR * chance.randrange(len(data) // SECTOR + 1)]
                _apply(image, offset, data)
            found[name] = bytes(image)
        return found


def _apply(image: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del image[offset:]
        return
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], weather: Weather, disk: Disk | None) -> None:
        self.name = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self.weather = weather
        self.disk = disk
        weather.pass_through("xOpen", self.name)
        super().__init__("", name, flags)
        if disk is not None and self.name not in disk.synced:
            path = Path(self.name)
            disk.synced[self.name] = bytearray(path.read_bytes() if path.exists() else b"")

    def xRead(self, amount: int, offset: int) -> bytes:
        self.weather.pass_through("xRead", self.name)
        return super().xRead(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.weather.pass_through("xWrite", self.name)
        super().xWrite(data, offset)
        if self.disk is not None:
            self.disk.write(self.name, bytes(data), offset)

    def xTruncate(self, newsize: int) -> None:
        self.weather.pass_through("xTruncate", self.name)
        super().xTruncate(newsize)
        if self.disk is not None:
            self.disk.write(self.name, None, newsize)

    def xSync(self, flags: int) -> None:
        self.weather.pass_through("xSync", self.name)
        super().xSync(flags)
        if self.disk is not None:
            self.disk.sync(self.name)


class FaultyVfs(apsw.VFS):
    def __init__(self, name: str, disk: Disk | None = None) -> None:
        self.name = name
        self.weather = Weather()
        self.disk = disk
        super().__init__(name, "", makedefault=False)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return _File(name, flags, self.weather, self.disk)

    def xDelete(self, name: str, syncdir: bool) -> None:
        super().xDelete(name, syncdir)
        if self.disk is not None:
            self.disk.synced.pop(name, None)
            self.disk.pending.pop(name, None)
