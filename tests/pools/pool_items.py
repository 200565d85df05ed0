"""What a queue sees of a task, and no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class Item:
    seq: int
    priority: int = 0
    partition: str | None = None
    waiting: bool = False
    next: Any = field(default=None, repr=False)
