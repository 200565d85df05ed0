"""A queue whose keys are paths: the shares of each branch, divided level by level.

The path `acme/bob` has two nodes, `acme` and `acme/bob`, and a leaf for its own jobs. A node counts
the work of everything below it, and has a turn and a credit among its siblings by the rule of
`Share`. A node knows the round of its children, which is the turn of the last one served; that of
the root is the queue's. Each change reads and writes the nodes from a leaf up to the root, however
many leaves there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harn.storage.operations import Operation, Row, ask, ask_many
from harn.storage.queue.share_turns import Share

if TYPE_CHECKING:
    from harn.storage.queue.queue_row import QueueState

MOST_LEVELS = 4
ROOT = ""
NODE = "\x04"
"""Ends the key of a node; names are printable, so no leaf has it."""
FORGOTTEN_MS = 60_000
"""A node that has held no job for so long begins again."""
COLUMNS = (
    *("queue_id", "key", "parent", "ready", "in_flight", "turn", "round", "credit", "refill"),
    *("idle_at", "inner_round"),
)


SERVED_COLUMNS = (
    *("queue_id", "key", "ready", "in_flight", "turn", "round", "credit", "refill", "inner_round"),
)


def lineage(key: str, separator: str) -> list[tuple[str, str]]:
    r"""Return the nodes of a leaf's *key* from the root on, and the leaf, each with its parent.

    What follows the fourth name is a part of it.

    >>> [key for key, _ in lineage("acme/bob", "/")]
    ['acme\x04', 'acme/bob\x04', 'acme/bob']
    """
    found: list[tuple[str, str]] = []
    parent, path = ROOT, ""
    for number, name in enumerate(key.split(separator, MOST_LEVELS - 1)):
        path = f"{path}{separator}{name}" if number else name
        found.append((f"{path}{NODE}", parent))
        parent = f"{path}{NODE}"
    return [*found, (key, parent)]


class Node(Share):
    """A node or a leaf of the tree: a share among its siblings."""

    parent: str = ROOT
    idle_at: int | None = None
    """Since when it has held no job that is ready or in flight."""
    inner: int = 0
    """The round of its children."""

    @property
    def is_leaf(self) -> bool:
        """Whether it holds jobs itself."""
        return not self.key.endswith(NODE)

    def shift(self, ready: int, in_flight: int, base: int, cap: int, now: int) -> None:
        """Add to its work; *base* is the round of its branch.

        A child that can be served again joins that round with one grant, unless it had its grant
        of the round before.
        """
        if self.idle_at is not None and now - self.idle_at >= FORGOTTEN_MS:
            self.round: int = -1
            self.credit: int = 0
            self.refill: int = 0
            self.inner = 0  # as in a row that was dropped; what is below is as old
        had_ready, was_open = self.ready > 0, self.turn is not None
        self.ready: int = self.ready + ready
        self.in_flight: int = self.in_flight + in_flight
        is_open = self.ready > 0 and not 0 < cap <= self.in_flight
        if was_open and not is_open:
            self._bring_up_to(base)
            self.turn: int | None = None
        if self.ready <= 0 or not had_ready:
            self.credit = min(0, self.credit)
        if is_open and not was_open:
            self._join(base)
        is_idle = self.ready <= 0 and self.in_flight <= 0
        self.idle_at = (self.idle_at or now) if is_idle else None

    def _join(self, round: int) -> None:
        if self.credit > 0:
            self.turn = self.round = round
            return
        first = max(round, self.round + 1)
        self.round = first - 1
        self.turn = first + (-self.credit // self.refill if self.refill else 0)

    def correct(self, amount: int, base: int) -> None:
        """Add *amount* to its credit in the round *base* of its branch."""
        if not self.refill:
            return
        self._bring_up_to(base)
        self.credit += amount
        if self.turn is not None:
            later = self.round + 1 + -self.credit // self.refill
            self.turn = self.round if self.credit > 0 else later

    def _bring_up_to(self, base: int) -> None:
        if self.turn is not None and base > self.round and self.refill:
            self.credit = self.accrued(base)
            self.round = base


def shift_tree(state: QueueState, moves: Iterable[tuple[str, int, int]]) -> Operation[None]:
    """Add to the work of leaves, (key, ready, in flight), and of all nodes above them."""
    moves = [move for move in moves if move[1] or move[2]]
    if moves:
        nodes = yield from _read(state, [key for key, _, _ in moves])
        for key, ready, in_flight in moves:
            shift_line(nodes.line(key), ready, in_flight, state.round, state.cap, state.now)
        yield from write_nodes(state, nodes.values())


def shift_line(
    line: Iterable[Node], ready: int, in_flight: int, round: int, cap: int, now: int
) -> None:
    """Add to the work of the nodes from the root down to a leaf; *round* is that of the root."""
    for node in line:
        node.shift(ready, in_flight, round, cap, now)
        round = node.inner


def correct_tree(state: QueueState, amounts: Mapping[str, int]) -> Operation[None]:
    """Add millionths to the credit of leaves and of all nodes above them."""
    if amounts:
        nodes = yield from _read(state, amounts)
        for key, amount in amounts.items():
            correct_line(nodes.line(key), amount, state.round)
        yield from write_nodes(state, nodes.values())


def correct_line(line: Iterable[Node], amount: int, round: int) -> None:
    """Add to the credit of the nodes from the root down to a leaf; *round* is that of the root."""
    for node in line:
        node.correct(amount, round)
        round = node.inner


def serve_in_tree(state: QueueState, key: str, path: Sequence[Sequence[int]]) -> Operation[Share]:
    """Serve a leaf as the *path* of its claim's record tells: round, credit, refill by level.

    Return its share afterwards.
    """
    read = yield from _read(state, [key])
    nodes = read.line(key)
    serve_path(nodes, path, state.cap)
    state.round = path[0][0]
    yield from write_nodes(state, nodes)
    return leaf_share(nodes[-1])


def leaf_share(leaf: Share) -> Share:
    """Return the share of a leaf that was served.

    The leaf has its credit. The turn of its share tells only whether the leaf can be served.
    """
    turn = None if leaf.turn is None else 0
    return Share(leaf.key, leaf.ready, leaf.in_flight, turn, 0, 0, 0, None)


def serve_path(nodes: Sequence[Node], path: Sequence[Sequence[int]], cap: int) -> None:
    """Serve the leaf at the end of *nodes*: round, credit and refill of each are in *path*."""
    above: Node | None = None
    for node, (round, credit, refill) in zip(nodes, path, strict=True):
        node.serve(round, credit, cap, refill)
        if above is not None:
            above.inner = round
        above = node


def rebuild_tree(state: QueueState) -> Operation[None]:
    """Count the tree again from the leaves, every one in the first round."""
    yield ask("forget_nodes", queue_id=state.queue_id)
    if not state.hierarchy:
        return
    rows = yield ask("work_of_shares", queue_id=state.queue_id)
    nodes = tree_of(rows, state.hierarchy, state.round, state.cap, state.now)
    yield from write_nodes(state, nodes.values())


def tree_of(
    leaves: Iterable[Sequence[Any]], separator: str, round: int, cap: int, now: int
) -> Nodes:
    """Make the tree of *leaves*, (key, ready, in flight), every node in its first round."""
    nodes = Nodes(separator)
    for key, ready, in_flight in leaves:
        shift_line(nodes.line(key), ready, in_flight, round, cap, now)
    return nodes


def write_nodes(state: QueueState, nodes: Iterable[Node]) -> Operation[None]:
    """Write nodes as they are."""
    rows: list[Row] = [
        (
            *(state.queue_id, node.key, node.parent, node.ready, node.in_flight, node.turn),
            *(node.round, node.credit, node.refill, node.idle_at, node.inner),
        )
        for node in nodes
    ]
    yield ask_many("put_nodes", COLUMNS, rows)


def write_served(state: QueueState, nodes: Iterable[Node]) -> Operation[None]:
    """Write nodes that a claim has served: they exist, and are not idle."""
    rows: list[Row] = [
        (
            *(state.queue_id, node.key, node.ready, node.in_flight, node.turn),
            *(node.round, node.credit, node.refill, node.inner),
        )
        for node in nodes
    ]
    yield ask_many("serve_nodes", SERVED_COLUMNS, rows)


def read_node(row: Sequence[Any]) -> Node:
    """Make a node of its row, without the queue's id."""
    key, parent, ready, in_flight, turn, round, credit, refill, idle_at, inner = row
    share = (key, ready, in_flight, turn, round, credit, refill, None)
    return Node(*share, parent=parent, idle_at=idle_at, inner=inner)


class Nodes(dict[str, Node]):
    """Nodes by key, and new ones for those that do not exist yet."""

    def __init__(self, separator: str, found: Iterable[Node] = ()) -> None:
        super().__init__((node.key, node) for node in found)
        self._separator = separator

    def line(self, key: str) -> list[Node]:
        """Return the nodes from the root down to a leaf, and the leaf."""
        return [
            self.get(each) or self.setdefault(each, _new_node(each, parent))
            for each, parent in lineage(key, self._separator)
        ]


def _read(state: QueueState, leaves: Iterable[str]) -> Operation[Nodes]:
    """Read some leaves and all nodes above them, in one statement."""
    keys = {each: None for leaf in leaves for each, _ in lineage(leaf, state.hierarchy)}
    wanted = msgspec.json.encode([*keys]).decode()
    rows = yield ask("nodes_of", queue_id=state.queue_id, keys=wanted)
    return Nodes(state.hierarchy, map(read_node, rows))


def _new_node(key: str, parent: str) -> Node:
    return Node(key, 0, 0, None, -1, 0, 0, None, parent=parent)
