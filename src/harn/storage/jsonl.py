"""A file of JSON lines with checksums: seal and read lines, append to the file, replace it.

The file store (topics and commit journal) and the journals of pipeline pools are such files. A
line is one JSON object that ends in its own checksum, the CRC-32 of everything before it:

    {"id":1,"kind":"greeting","crc":"5379eead"}

Rules for every such file:

- A last line without its newline and without its checksum is *torn*: it was never acknowledged,
  and is removed before the next append.
- Any other line that cannot be read is *damaged*. It is reported with the byte where it begins,
  its bytes are kept in `<file>.damaged`, and the lines around it are still read.
- A whole file is replaced by writing a new one, syncing it, renaming it and syncing the directory.
  A crash at any step leaves the old file or the new one.

All of this blocks, so the owner of a file runs it on a thread.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from harn.file_sync import sync_data, sync_file
from harn.private_files import open_private, sync_dir

SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}')
"""The end of a sealed line, without its newline."""
TAIL = len(b',"crc":"00000000"}\n')

_WRITE_SIZE = 1 << 20


# -- lines -------------------------------------------------------------------------------------


def seal(body: bytes) -> bytes:
    """Return *body*, an object without its last brace, closed with its checksum and a newline."""
    return b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body))


def is_sealed(line: bytes) -> bool:
    """Tell whether *line* is complete and its checksum is right."""
    return line[-TAIL:] == b',"crc":"%08x"}\n' % zlib.crc32(line[:-TAIL])


def close_line(line: bytes) -> bytes:
    """Return *line* with its newline, if only the newline after its seal is missing or wrong."""
    if is_sealed(line):
        return line
    found = SEAL.search(line, max(0, len(line) - TAIL))
    if found is None or len(line) - found.end() > 1:
        return line
    return line[: found.end()] + b"\n"


def split_lines(data: bytes) -> list[bytes]:
    """Split *data* after each newline."""
    # not bytes.splitlines, which also splits at a "\r" that damage may have put anywhere
    parts = data.split(b"\n")
    return [part + b"\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def intact_pieces(line: bytes) -> list[bytes]:
    """Split *line* where a newline is missing or wrong: its sealed parts, then the rest.

    >>> first, second = seal(b'{"id":1'), seal(b'{"id":2')
    >>> intact_pieces(first[:-1] + b"?" + second) == [first[:-1] + b"?", second]
    True
    """
    pieces, start, crc, seen = [], 0, 0, 0
    for found in SEAL.finditer(line):
        crc = zlib.crc32(line[seen : found.start()], crc)
        seen = found.start()
        if crc == int(found[1], 16):
            end = found.end() + (line[found.end() : found.end() + 1] not in (b"", b"{"))
            pieces.append(line[start:end])
            start = seen = end
            crc = 0
    if start < len(line):
        pieces.append(line[start:])
    return pieces


def read_lines(
    chunks: Iterable[bytes], start: int = 0
) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield each line: the byte where it begins, its bytes, and its JSON text.

    The text is None if the line is damaged or torn; only the last line, if it has no newline, can
    be torn. *chunks* are the bytes of the file from *start* on, in pieces of any length.
    """
    for line in _joined_lines(chunks):
        if is_sealed(line):
            yield start, line, line
            start += len(line)
            continue
        for piece in intact_pieces(line):
            text = close_line(piece)
            yield start, piece, text if is_sealed(text) else None
            start += len(piece)


def _joined_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    kept: list[bytes] = []  # a line may span many chunks, so they are joined once, at its newline
    for chunk in chunks:
        cut = chunk.rfind(b"\n") + 1
        if cut:
            kept.append(chunk[:cut])
            yield from split_lines(b"".join(kept))
            kept.clear()
        kept.append(chunk[cut:])
    yield from split_lines(b"".join(kept))


# -- damage ------------------------------------------------------------------------------------


class Damage(msgspec.Struct, frozen=True):
    """Bytes that cannot be trusted: where in the file they begin, and why."""

    offset: int
    reason: str
    data: bytes


def set_aside(path: Path, found: Sequence[Damage], folder: int | None = None) -> None:
    """Write the damaged bytes that were *found* in *path* to a file beside it, durably.

    *folder* is an open handle of the directory, if the caller has one.
    """
    aside = _in_folder(path, ".damaged", folder)
    handle = open_private(aside, os.O_WRONLY | os.O_APPEND | os.O_CREAT, dir_fd=folder)
    with open(handle, "ab") as side:
        for each in found:
            kept = base64.b64encode(each.data).decode()
            note = {"offset": each.offset, "reason": each.reason, "base64": kept}
            side.write(json.dumps(note).encode() + b"\n")
        side.flush()
        sync_file(handle)
    _sync_folder(path, folder)


def count_aside(path: Path) -> int:
    """Return how many damaged pieces of *path* were set aside."""
    try:
        return path.with_name(f"{path.name}.damaged").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


# -- files -------------------------------------------------------------------------------------


class AppendFile:
    """An open file that one writer at a time appends to or replaces as a whole.

    The owner opens *handle* and sets *end*. With *folder*, an open handle of the directory, the
    file is used there even after the directory was moved.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder: int | None = None
        self.handle: int = -1
        self.end: int = 0
        """The byte after the last complete line that was read or appended."""

    def append(self, data: bytes) -> None:
        """Write *data* at the end; after an `OSError`, `cut_back` removes what was written."""
        write_all(self.handle, data, self.end)
        self.end += len(data)

    def cut_back(self) -> None:
        """Remove the bytes after the last complete line."""
        os.ftruncate(self.handle, self.end)

    def sync(self) -> None:
        """Return when everything appended is on the disk."""
        sync_data(self.handle)

    def replace(self, chunks: Iterable[bytes], *, locked: bool = False) -> None:
        """Replace the file by a new one with *chunks*, and use that from now on.

        With *locked*, the new file is locked before another process can open it by its name.
        After an error before the rename, the old file is still in use.
        """
        self.remove_temporary()
        temporary, name = self._named(".tmp"), self._named("")
        new = open_private(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, dir_fd=self.folder)
        try:
            if locked:
                fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            end = _write_chunks(new, chunks)
            sync_file(new)
            os.rename(temporary, name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        except BaseException:
            os.close(new)
            self.remove_temporary()
            raise
        # The new file must be used even if the sync below fails: after the rename no reader would
        # find what is appended to the old one.
        old, self.handle, self.end = self.handle, new, end
        if old >= 0:
            os.close(old)
        _sync_folder(self.path, self.folder)

    def remove_temporary(self) -> None:
        """Remove the file that an unfinished replacement left behind."""
        try:
            os.unlink(self._named(".tmp"), dir_fd=self.folder)
        except FileNotFoundError:
            pass

    def close(self) -> None:
        """Close the file."""
        handle, self.handle = self.handle, -1
        if handle >= 0:
            os.close(handle)

    def _named(self, ending: str) -> str | Path:
        return _in_folder(self.path, ending, self.folder)


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file *path* by one with *data*."""
    file = AppendFile(path)
    try:
        file.replace([data])
    finally:
        file.close()


def write_all(handle: int, data: bytes, at: int) -> None:
    """Write all of *data* at byte *at*, with more system calls after a short write."""
    done = os.pwrite(handle, data, at)
    while done < len(data):
        done += os.pwrite(handle, data[done:], at + done)


def try_lock(handle: int) -> bool:
    """Lock the file of *handle* against other processes and handles; False if it is locked.

    The lock ends with `unlock`, or when the last copy of the handle is closed, at the latest at
    the end of the process.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(handle: int) -> None:
    """Release the lock of `try_lock`; a forked child that shares the handle loses it too."""
    fcntl.flock(handle, fcntl.LOCK_UN)


def _write_chunks(handle: int, chunks: Iterable[bytes]) -> int:
    """Write *chunks* in pieces of about a megabyte; return the number of bytes."""
    end, size, gathered = 0, 0, []
    for chunk in chunks:
        gathered.append(chunk)
        size += len(chunk)
        if size >= _WRITE_SIZE:
            write_all(handle, b"".join(gathered), end)
            end, size = end + size, 0
            gathered.clear()
    write_all(handle, b"".join(gathered), end)
    return end + size


def _in_folder(path: Path, ending: str, folder: int | None) -> str | Path:
    name = f"{path.name}{ending}"
    return path.with_name(name) if folder is None else name


def _sync_folder(path: Path, folder: int | None) -> None:
    if folder is None:
        sync_dir(path.parent)
    else:
        sync_file(folder)
