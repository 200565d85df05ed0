"""Files of checksummed lines: what is read from damaged ones, and how a file is replaced."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harn.storage.jsonl import (
    AppendFile,
    Damage,
    count_aside,
    is_sealed,
    read_lines,
    seal,
    set_aside,
    try_lock,
    unlock,
    write_whole,
)

LINES = [seal(b'{"id":%d,"text":"\\u00e9\\r"' % n) for n in range(1, 5)]


def texts(data: bytes) -> list[bytes]:
    return [text for _, _, text in read_lines([data]) if text is not None]


@given(st.lists(st.integers(0, len(b"".join(LINES)))))
def test_a_file_reads_the_same_however_it_is_cut_into_chunks(cuts: list[int]) -> None:
    data = b"".join(LINES)
    edges = [0, *sorted(cuts), len(data)]
    chunks = [data[a:b] for a, b in pairwise(edges)]

    found = list(read_lines(chunks, start=100))

    assert [line for _, line, _ in found] == LINES
    assert [text for _, _, text in found] == LINES
    assert [at for at, _, _ in found] == [100 + n * len(LINES[0]) for n in range(4)]


def test_a_damaged_line_is_named_with_its_place_and_the_others_count() -> None:
    broken = LINES[1].replace(b"text", b"tExt")

    found = list(read_lines([LINES[0] + broken + LINES[2]]))

    assert found[1] == (len(LINES[0]), broken, None)
    assert [text for _, _, text in found] == [LINES[0], None, LINES[2]]


@pytest.mark.parametrize("instead", [b"", b"?", b"\r\n", b"\0"])
def test_a_newline_that_was_lost_or_changed_costs_no_line(instead: bytes) -> None:
    data = LINES[0][:-1] + instead + LINES[1] + LINES[2][:-1]

    assert texts(data) == LINES[:3]


def test_every_cut_leaves_whole_lines_and_a_torn_one_without_newline() -> None:
    data = b"".join(LINES)

    for length in range(len(data)):
        found = list(read_lines([data[:length]]))
        whole = [text for _, _, text in found if text is not None]
        torn = [line for _, line, text in found if text is None]
        assert whole == LINES[: len(whole)]
        assert len(torn) <= 1 and not any(b"\n" in line for line in torn)
        assert b"".join(line for _, line, _ in found) == data[:length]


@given(st.data())
def test_any_changed_bit_breaks_the_seal(data: st.DataObject) -> None:
    line = bytearray(LINES[0])
    line[data.draw(st.integers(0, len(line) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    assert not is_sealed(bytes(line))


def test_damaged_bytes_are_kept_beside_the_file_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"

    set_aside(path, [Damage(7, "odd", b"\xff")])
    set_aside(path, [Damage(9, "odd again", b"")])

    kept = tmp_path / "a.jsonl.damaged"
    assert kept.read_bytes().startswith(b'{"offset": 7, "reason": "odd", "base64": "/w=="}\n')
    assert count_aside(path) == 2
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_replacement_that_fails_leaves_the_old_file_in_use(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "a.jsonl")
    file.replace([LINES[0]])

    def fails() -> Iterator[bytes]:
        yield LINES[1]
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        file.replace(fails())
    file.append(LINES[2])
    file.close()

    assert file.path.read_bytes() == LINES[0] + LINES[2]
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_a_rename_that_may_not_be_durable_leaves_the_new_file_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AppendFile(tmp_path / "a.jsonl")
    file.replace([LINES[0]])
    sync = os.fsync

    def no_directory(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError("no")
        sync(handle)

    monkeypatch.setattr(os, "fsync", no_directory)
    with pytest.raises(OSError, match="no"):
        file.replace([LINES[1]])
    file.append(LINES[2])
    file.close()

    assert file.path.read_bytes() == LINES[1] + LINES[2]


def test_a_large_replacement_is_written_in_pieces(tmp_path: Path) -> None:
    chunks = [bytes((n,)) * 700_000 for n in range(5)]
    file = AppendFile(tmp_path / "a.jsonl")

    file.replace(chunks)
    file.append(b"end")
    file.close()

    assert file.path.read_bytes() == b"".join(chunks) + b"end"


def test_a_lock_is_refused_until_it_is_released(tmp_path: Path) -> None:
    write_whole(tmp_path / "lock", b"")
    first, second = (os.open(tmp_path / "lock", os.O_RDWR) for _ in range(2))

    assert try_lock(first)
    assert not try_lock(second)
    unlock(first)
    assert try_lock(second)

    os.close(first)
    os.close(second)


def test_a_write_that_the_system_cuts_short_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:3], at))

    write_whole(tmp_path / "file", b"one line of some length\n")

    assert (tmp_path / "file").read_bytes() == b"one line of some length\n"


def test_damaged_bytes_that_are_set_aside_are_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(
        "harn.storage.jsonl.sync_file", lambda fd: synced.append(os.fstat(fd).st_ino)
    )

    set_aside(tmp_path / "file", [Damage(0, "the checksum does not match", b"x")])

    assert (tmp_path / "file.damaged").stat().st_ino in synced
