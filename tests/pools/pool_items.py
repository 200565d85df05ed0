"""What a queue sees of a task, and no more; and a queue as a model of a few lines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False, slots=True)
class Item:
    seq: int
    priority: int = 0
    partition: str | None = None
    next: Any = field(default=None, repr=False)


class Model:
    """A list of those that wait, and for the fair queue the rotation of keys."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.items: list[Item] = []
        self.rotation: list[str | None] = []

    def push(self, item: Item) -> None:
        self.items.append(item)
        if item.partition not in self.rotation:
            self.rotation.append(item.partition)

    def pop(self) -> Item | None:
        if not self.items:
            return None
        if self.kind == "fifo":
            item = self.items[0]
        elif self.kind == "lifo":
            item = self.items[-1]
        elif self.kind == "priority":
            item = min(self.items, key=lambda each: (-each.priority, each.seq))
        else:
            key = self.rotation.pop(0)
            item = next(each for each in self.items if each.partition == key)
            self.rotation.append(key)
        self.remove(item)
        return item

    def remove(self, item: Item) -> None:
        self.items.remove(item)
        if all(each.partition != item.partition for each in self.items):
            self.rotation = [key for key in self.rotation if key != item.partition]
