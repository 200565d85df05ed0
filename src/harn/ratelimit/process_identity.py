"""The name of a process that owns tickets, from which others can tell whether it still runs.

A process that was killed cannot release its place in line. Its lease expires after a few seconds.
On the same machine no process needs to wait for that, because the kernel knows which processes run.
For a process of another host or another container the lease decides.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

UNKNOWN = "-"


def owner_here(unique: str) -> str:
    """Return the name of this process as an owner; *unique* distinguishes several owners in it."""
    return "/".join((*_world(), str(os.getpid()), _started(os.getpid()) or UNKNOWN, unique))


def is_gone(owner: str) -> bool:
    """Tell whether the process of *owner* is known to have ended.

    >>> is_gone(owner_here("me"))
    False
    """
    boot, space, pid, started, _ = owner.split("/", 4)
    if UNKNOWN in (boot, started) or (boot, space) != _world() or not pid.isdigit():
        return False
    return _started(int(pid)) != started


@functools.cache
def _world() -> tuple[str, str]:
    """Return the ids of this boot of the machine and of our namespace of process ids."""
    if sys.platform != "linux":
        return UNKNOWN, UNKNOWN
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid")
    except OSError:
        return UNKNOWN, UNKNOWN


def _started(pid: int) -> str | None:
    """Return when process *pid* started, in the kernel's ticks; None when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(") ")[2].split()
    return None if state in "ZX" else rest[18]
