"""Fair share in a tree: the next job of a queue whose keys are paths (ruling 66).

From the root down, each branch chooses the child whose turn is first, by the rule of
`fairshare.py`: one grant a round by weight, debts paid by rounds. A child keeps its turn until its
credit is spent. What a branch does not use is taken by its siblings, because a branch without ready
work has no turn. A pick is charged to the leaf and to every node above it, so each level keeps the
bound of a flat queue.

A claim reads one row for each level of the path and one more, however many leaves there are.
"""

from __future__ import annotations

import heapq
from typing import TypeAlias

from harn.storage import Operation, Row, ask
from harn.storage.queue import Board, Choice, Pick, job_charges, share_tree
from harn.workers.fairshare import CHUNK, Head, Lane, read_heads, read_more
from harn.workers.scheduler_policy import SchedulerPolicy

Node: TypeAlias = share_tree.Node


def choose_in_tree(
    policy: SchedulerPolicy, board: Board, wanted: int, seen: list[Row] | None = None
) -> Operation[Choice]:
    """Choose at most *wanted* jobs by *policy*; nothing that was *seen* ahead is of use."""
    tree = _Tree(policy, board, wanted)
    while tree.left and (yield from tree.serve_next()):
        pass
    return tree.choice()


class _Branch:
    """The children of one node that can be served, read in the order of their turns."""

    def __init__(self, policy: SchedulerPolicy, board: Board, parent: str) -> None:
        self._policy = policy
        self._board = board
        self._parent = parent
        self._children: dict[str, Lane] = {}
        self._line: list[tuple[int, str]] = []
        self._read_up_to = (-1, "")
        self._is_read = False

    def first(self, size: int) -> Operation[Lane | None]:
        """Return the child whose turn is first, or None; read *size* at a time."""
        while True:
            while self._line:
                turn, key = self._line[0]
                lane = self._children[key]
                if lane.share.turn != turn:
                    heapq.heappop(self._line)  # it was served since, or passed over
                elif self._is_read or self._line[0] <= self._read_up_to:
                    return lane
                else:
                    break
            if self._is_read:
                return None
            yield from self._read_more(size)

    def _read_more(self, size: int) -> Operation[None]:
        turn, after = self._read_up_to
        where = {"queue_id": self._board.queue_id, "parent": self._parent}
        rows = yield ask("children", turn=turn, after=after, limit=size, **where)
        self._is_read = len(rows) < size
        for row in rows:
            node = share_tree.read_node(row)
            assert node.turn is not None
            self._read_up_to = (node.turn, node.key)
            if node.key not in self._children:
                self._children[node.key] = Lane(node, self._policy.full_credit(node.key))
                self.enter(self._children[node.key])

    def enter(self, lane: Lane) -> None:
        """Put a child into the line by its turn, if it has one."""
        if lane.share.turn is not None:
            heapq.heappush(self._line, (lane.share.turn, lane.share.key))

    def pass_over(self, lane: Lane) -> None:
        """Leave out the first child: it has no job that this claimer can handle."""
        heapq.heappop(self._line)


class _Tree:
    """One claim's view of the tree: the branches that it has read, and the jobs it has chosen."""

    def __init__(self, policy: SchedulerPolicy, board: Board, wanted: int) -> None:
        self.left = wanted
        self._policy = policy
        self._board = board
        self._branches: dict[str, _Branch] = {}
        self._served: dict[str, Node] = {}
        self._picks: list[Pick] = []
        self._round = board.round

    def choice(self) -> Choice:
        """Return what was chosen."""
        board, nodes = self._board, list(self._served.values())
        return Choice(self._picks, self._round, board.last_key, board.promoted, [], nodes)

    def serve_next(self) -> Operation[bool]:
        """Choose one more job; return False when no leaf can be served."""
        path: list[Lane] = []
        branches: list[_Branch] = []
        while True:
            branch = self._branch(path[-1].share.key if path else share_tree.ROOT)
            lane = yield from branch.first(min(CHUNK, 1 + self.left))
            head: Head | None = None
            if lane is not None:
                path, branches = [*path, lane], [*branches, branch]
                if not _node(lane).is_leaf:
                    continue
                head = yield from self._head(lane)
                if head is not None:
                    self._serve(path, branches, head)
                    return True
            elif not path:
                return False
            branches[-1].pass_over(path[-1])
            path, branches = [], []

    def _branch(self, parent: str) -> _Branch:
        found = self._branches.get(parent)
        if found is None:
            found = self._branches[parent] = _Branch(self._policy, self._board, parent)
        return found

    def _head(self, lane: Lane) -> Operation[Head | None]:
        """Return the next job of a leaf that this claimer can handle, or None."""
        if not lane.is_loaded:
            yield from read_heads(self._board, [lane], min(CHUNK, 1 + self.left))
        yield from read_more(self._board, lane, self.left)
        return lane.best(self._board.now) if any(lane.heads) else None

    def _serve(self, path: list[Lane], branches: list[_Branch], head: Head) -> None:
        id, at, attempts, most, cost, body = head
        policy = self._policy
        charged = policy.charge_of(cost) if policy.charge == "cost" else job_charges.MILLION
        nodes = [_node(lane) for lane in path]
        turns = [node.turn or 0 for node in nodes]
        told = [
            (turn, lane.credit(turn) - charged, lane.full)
            for turn, lane in zip(turns, path, strict=True)
        ]
        share_tree.serve_path(nodes, told, policy.max_concurrent_per_key)
        self._round = turns[0]
        for lane, branch in zip(path, branches, strict=True):
            branch.enter(lane)
        self._served.update({node.key: node for node in nodes})
        path[-1].take(head)
        self.left -= 1
        key = path[-1].share.key
        self._picks.append(
            Pick(
                *(id, key, at, attempts, most, body, self._round, 0),
                charged=charged,
                path=told,
            )
        )


def _node(lane: Lane) -> Node:
    node = lane.share
    assert isinstance(node, Node)
    return node
