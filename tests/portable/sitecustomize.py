"""Takes away what only Linux has, to run the suite as on another Unix: see `make portable`.

Python runs this at its start because the directory is on `PYTHONPATH`, also in the processes that
tests start. harn's own code no longer finds `/proc`, inotify, `os.eventfd` and `os.fdatasync`;
other libraries still find `/proc`, because the tests' PostgreSQL server needs it.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import sys
from typing import Any

for _name in ("fdatasync", "eventfd", "eventfd_read", "eventfd_write", "pidfd_open"):
    if hasattr(os, _name):
        delattr(os, _name)


def _asked_by_harn() -> bool:
    frame = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith("harn"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _without_proc(call: Any) -> Any:
    def without(path: Any = ".", *args: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            if _asked_by_harn():
                raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return call(path, *args, **options)

    return without


for _name in ("stat", "listdir", "readlink", "open"):
    setattr(os, _name, _without_proc(getattr(os, _name)))
io.open = builtins.open = _without_proc(io.open)

_symbol = ctypes.CDLL.__getattr__


def _without_inotify(self: Any, name: str) -> Any:
    if name.startswith("inotify"):
        raise AttributeError(name)
    return _symbol(self, name)


ctypes.CDLL.__getattr__ = _without_inotify  # type: ignore[method-assign]
