"""What this run finds of the things that only Linux has; `make portable` takes them away."""

from __future__ import annotations

import os

from harn.running_processes import process_started

DATA_SYNC = "fdatasync" if hasattr(os, "fdatasync") else "fsync"
"""The name of the call that syncs a file's data: tests of failing disks replace it."""

HAS_PROC = process_started(os.getpid()) != "running"
"""Whether harn finds /proc."""
