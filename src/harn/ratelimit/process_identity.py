"""The name of a process that owns tickets, from which others can tell whether it still runs.

A process that was killed cannot release its place in line. Its lease expires after a few seconds.
On the same machine no process needs to wait for that, because the kernel knows which processes run.
For a process of another host or another container the lease decides.
"""

from __future__ import annotations

import os

from harn.option_checks import read_whole
from harn.running_processes import UNKNOWN, process_started, this_machine


def owner_here(unique: str) -> str:
    """Return the name of this process as an owner; *unique* distinguishes several owners in it."""
    pid = os.getpid()
    return "/".join((*this_machine(), str(pid), process_started(pid) or UNKNOWN, unique))


def is_gone(owner: str) -> bool:
    """Tell whether the process of *owner* is known to have ended.

    >>> is_gone(owner_here("me"))
    False
    """
    boot, space, pid, started, _ = owner.split("/", 4)
    number = read_whole(pid)
    if UNKNOWN in (boot, started) or (boot, space) != this_machine() or number is None:
        return False
    return process_started(number) != started
