"""Telling whether a process of this machine still runs.

On Linux `/proc` says it, and tells two processes with the same id apart. Every other Unix, macOS
above all, is asked with a signal that does nothing.
"""

from __future__ import annotations

import functools
import os
import platform
import uuid
from pathlib import Path

UNKNOWN = "-"


def this_machine() -> tuple[str, str]:
    """Return names of this machine, since its last start, and of our namespace of process ids.

    Two processes see each other's process ids if both names are equal.
    """
    return _machine(os.getpid())


@functools.lru_cache(maxsize=1)
def _machine(_pid: int) -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        # Two machines with the same name may share a database, so the network card counts too.
        # Without one, Python makes a number up, which is equal to no other process's.
        return f"{platform.node()}:{uuid.getnode():x}", UNKNOWN


def process_started(pid: int) -> str | None:
    """Return a text that is equal as long as process *pid* runs; None when it has ended.

    On Linux it is the time of its start, so that another process with the same id is told apart.
    Elsewhere another process with the same id is taken for it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _running(pid) if not os.path.isdir("/proc/self") else None
    state, *rest = stat.rpartition(") ")[2].split()
    return None if state in "ZX" else rest[18]


def _running(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it runs as another user
        pass
    return "running"
