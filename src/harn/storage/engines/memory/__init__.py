"""memory://: the same statements on a private SQLite in memory.

memory_driver.py   the engine
"""

from __future__ import annotations

from harn.storage.engines.memory.memory_driver import MemoryDriver

__all__ = ["MemoryDriver"]
