"""The tree of a queue whose keys are paths, in memory: what the table `share_nodes` is in a store.

The rules are those of `storage/queue/share_tree.py`. Here is only how nodes are found by turn.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from harn.storage import Row, Rows
from harn.storage.queue import share_tree


class TreeRows:
    """The nodes of a tree, and of each branch the children that have a turn, in their order."""

    def __init__(
        self, leaves: Iterable[Sequence[Any]], separator: str, round: int, cap: int, now: int
    ) -> None:
        self._nodes = share_tree.tree_of(leaves, separator, round, cap, now)
        self._turns: dict[str, int] = {}
        self._open: dict[str, list[tuple[int, str]]] = {}
        self._place(self._nodes.values())

    def __bool__(self) -> bool:
        """Tell whether any leaf can be served."""
        return bool(self._open.get(share_tree.ROOT))

    def shift(self, key: str, ready: int, in_flight: int, round: int, cap: int, now: int) -> None:
        """Add to the work of a leaf and of all nodes above it."""
        line = self._nodes.line(key)
        share_tree.shift_line(line, ready, in_flight, round, cap, now)
        self._place(line)

    def correct(self, key: str, amount: int, round: int) -> None:
        """Add millionths to the credit of a leaf and of all nodes above it."""
        line = self._nodes.line(key)
        share_tree.correct_line(line, amount, round)
        self._place(line)

    def serve(self, key: str, path: Sequence[Sequence[int]], cap: int) -> None:
        """Serve a leaf as the record of its claim tells: round, credit and refill by level."""
        line = self._nodes.line(key)
        share_tree.serve_path(line, path, cap)
        self._place(line)

    def put(self, nodes: Iterable[share_tree.Node]) -> None:
        """Write nodes as the scheduler left them."""
        for node in nodes:
            self._nodes[node.key] = node
            self._place([node])

    def _place(self, nodes: Iterable[share_tree.Node]) -> None:
        """Put nodes into the line of their branch by their turns, as far as those have changed."""
        for node in nodes:
            key, was = node.key, self._turns.get(node.key)
            if was == node.turn:
                continue
            line = self._open.setdefault(node.parent, [])
            if was is not None:
                del line[bisect_left(line, (was, key))]
            if node.turn is None:
                del self._turns[key]
            else:
                insort(line, (node.turn, key))
                self._turns[key] = node.turn

    # -- answers ---------------------------------------------------------------------------------

    def children(self, parent: str, turn: int, after: str, limit: int, **_: Any) -> Rows:
        """Answer `children`."""
        line = self._open.get(parent, [])
        first = bisect_right(line, (turn, after))
        return [self._row(key) for _, key in line[first : first + limit]]

    def first_children(self, parents: str, limit: int, **_: Any) -> Rows:
        """Answer `first_children`."""
        found = [self.children(each, -1, "", limit) for each in msgspec.json.decode(parents)]
        return [row for rows in found for row in rows]

    def first_path(self, parents: str, **_: Any) -> Rows:
        """Answer `first_path`."""
        rows: Rows = []
        for parent in msgspec.json.decode(parents):
            while line := self._open.get(parent):
                parent = line[0][1]
                rows.append(self._row(parent))
        return rows

    def _row(self, key: str) -> Row:
        node = self._nodes[key]
        return (
            *(node.key, node.parent, node.ready, node.in_flight, node.turn, node.round),
            *(node.credit, node.refill, node.idle_at, node.inner),
        )
