"""Fair share in a tree: the next job of a queue whose keys are paths.

From the root down, each branch chooses the child whose turn is first, by the rule of
`fairshare.py`: one grant a round by weight, debts paid by rounds. A child keeps its turn until its
credit is spent. What a branch does not use is taken by its siblings, because a branch without ready
work has no turn. A pick is charged to the leaf and to every node above it, so each level keeps the
bound of a flat queue.

A claim reads one row for each level of the path, however many leaves there are. A claim of many
jobs reads ahead: a statement or two for each level, and one or two for all jobs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from harn.storage import Operation, Row, ask, ask_together
from harn.storage.queue import Board, Choice, Pick, Share, job_charges, share_tree
from harn.workers import key_heads
from harn.workers.key_heads import Head, Lane, read_heads, read_more
from harn.workers.scheduler_policy import SchedulerPolicy

Node: TypeAlias = share_tree.Node


def choose_in_tree(
    policy: SchedulerPolicy, board: Board, wanted: int, seen: list[Row] | None = None
) -> Operation[Choice]:
    """Choose at most *wanted* jobs by *policy*; nothing that was *seen* ahead is of use."""
    tree = _Tree(policy, board, wanted)
    yield from tree.look_ahead()
    while tree.left and (yield from tree.serve_next()):
        pass
    return tree.choice()


class _Child:
    """A node that was read, what a round grants it and, of a leaf, its jobs."""

    __slots__ = ("full", "lane", "node")

    def __init__(self, node: Node, full: int) -> None:
        self.node = node
        self.full = full
        self.lane: Lane | None = Lane(node, full) if node.is_leaf else None


class _Branch:
    """The children of one node that can be served, read in the order of their turns."""

    def __init__(self, policy: SchedulerPolicy, board: Board, parent: str) -> None:
        self.children: dict[str, _Child] = {}
        self.is_read = False
        """Whether all of them were read."""
        self._policy = policy
        self._board = board
        self._parent = parent
        self._line: list[tuple[int, str]] = []
        self._read_up_to = (-1, "")

    def known(self) -> _Child | None:
        """Return the child whose turn is first, if there is one and it was read."""
        line = self._line
        while line:
            turn, key = line[0]
            child = self.children[key]
            if child.node.turn == turn:
                return child if self.is_read or line[0] <= self._read_up_to else None
            heapq.heappop(line)  # it was served since
        return None

    def read_more(self) -> Operation[None]:
        """Read as many children as are known, so that few statements read many."""
        turn, after = self._read_up_to
        size = min(key_heads.CHUNK, max(1, len(self.children)))
        where = {"queue_id": self._board.queue_id, "parent": self._parent}
        rows = yield ask("children", turn=turn, after=after, limit=size, **where)
        for row in rows:
            self.add(row)
        self.is_read = len(rows) < size

    def add(self, row: Row) -> None:
        """Add the child after the last one that was read."""
        node = share_tree.read_node(row)
        assert node.turn is not None
        self._read_up_to = (node.turn, node.key)
        if node.key not in self.children:
            self.children[node.key] = _Child(node, self._policy.full_credit(node.key))
            self.enter(node)

    def expected(self, picks: int) -> dict[str, int]:
        """Tell how often each child will be served in so many picks, if each costs 1."""
        if picks == 1:
            first = self.known()
            return {} if first is None else {first.node.key: 1}
        cap, found = self._policy.max_concurrent_per_key, dict[str, int]()
        children = [self.children[key] for _, key in sorted(self._line)]
        grants = [each.node.credit_in(each.node.turn or 0, each.full) for each in children]
        room = [
            min(each.node.ready, cap - each.node.in_flight if cap else picks) for each in children
        ]
        while picks and any(room):
            for place, child in enumerate(children):
                served = min(picks, room[place], max(1, -(-grants[place] // job_charges.MILLION)))
                if served:
                    found[child.node.key] = found.get(child.node.key, 0) + served
                    room[place] -= served
                    picks -= served
            grants = [each.full for each in children]
        return found

    def enter(self, node: Node) -> None:
        """Put a child into the line by its turn, if it has one."""
        if node.turn is not None:
            heapq.heappush(self._line, (node.turn, node.key))

    def pass_over(self) -> None:
        """Leave out the first child: it has no job that this claimer can handle."""
        heapq.heappop(self._line)


class _Tree:
    """One claim's view of the tree: the branches that it has read, and the jobs it has chosen."""

    def __init__(self, policy: SchedulerPolicy, board: Board, wanted: int) -> None:
        self.left = wanted
        self._policy = policy
        self._board = board
        self._branches: dict[str, _Branch] = {}
        self._served: dict[str, _Child] = {}
        self._picks: list[Pick] = []
        self._round = board.round

    def choice(self) -> Choice:
        """Return what was chosen."""
        board, served = self._board, self._served.values()
        shares = [self._share(each.lane) for each in served if each.lane is not None]
        nodes = [each.node for each in served]
        return Choice(self._picks, self._round, board.last_key, board.promoted, shares, nodes)

    def _share(self, lane: Lane) -> Share:
        """Return the share of a leaf: its turn tells only whether it can be served."""
        share = share_tree.leaf_share(lane.share)
        if self._board.triggers is None and lane.lacks is None:
            share.oldest_at = min([heads[0][1] for heads in lane.heads if heads], default=None)
            share.knows_oldest = True
        return share

    def _branch(self, parent: str) -> _Branch:
        found = self._branches.get(parent)
        if found is None:
            found = self._branches[parent] = _Branch(self._policy, self._board, parent)
        return found

    # -- reading ahead ---------------------------------------------------------------------------

    def look_ahead(self) -> Operation[None]:
        """Read what the picks will need, all nodes of a level together, then the jobs.

        It is a guess where jobs differ in cost or in what the claimer can handle. What is missing
        is read when it is needed.
        """
        wanted = {share_tree.ROOT: self.left}
        leaves: dict[int, list[Lane]] = {}
        while wanted:
            yield from self._read_level(wanted)
            below: dict[str, int] = {}
            for parent, picks in wanted.items():
                branch = self._branch(parent)
                for key, times in branch.expected(picks).items():
                    lane = branch.children[key].lane
                    if lane is None:
                        below[key] = times
                    else:  # one more, to know how old the next one is
                        leaves.setdefault(min(key_heads.CHUNK, times + 1), []).append(lane)
            wanted = below
        for depth, some in leaves.items():
            yield from read_heads(self._board, some, depth)

    def _read_level(self, wanted: dict[str, int]) -> Operation[None]:
        """Read the first children of branches: as many as each is *wanted* for.

        A branch that is wanted once is followed down to its leaf.
        """
        by_limit: dict[int, list[str]] = {}
        for parent, limit in wanted.items():
            if parent not in self._branches:
                by_limit.setdefault(min(key_heads.CHUNK, limit), []).append(parent)
        if not by_limit:
            return
        asked = [self._first(limit, parents) for limit, parents in by_limit.items()]
        found: Any = yield ask_together(asked)
        for rows in found:
            for row in rows:
                self._branch(row[1]).add(row)
        for limit, parents in by_limit.items():
            for branch in map(self._branch, parents):
                branch.is_read = len(branch.children) < limit

    def _first(self, limit: int, parents: Sequence[str]) -> Any:
        about = {"queue_id": self._board.queue_id, "parents": msgspec.json.encode(parents).decode()}
        return (
            ask("first_path", **about)
            if limit == 1
            else ask("first_children", limit=limit, **about)
        )

    # -- picks -----------------------------------------------------------------------------------

    def serve_next(self) -> Operation[bool]:
        """Choose one more job; return False when no leaf can be served."""
        path: list[tuple[_Branch, _Child]] = []
        parent = share_tree.ROOT
        while True:
            branch = self._branch(parent)
            while (child := branch.known()) is None and not branch.is_read:
                yield from branch.read_more()
            if child is not None:
                path.append((branch, child))
                if child.lane is None:
                    parent = child.node.key
                    continue
                head = yield from self._head(child.lane)
                if head is not None:
                    self._serve(path, child.lane, head)
                    return True
            elif not path:
                return False
            path[-1][0].pass_over()
            path, parent = [], share_tree.ROOT

    def _head(self, lane: Lane) -> Operation[Head | None]:
        """Return the next job of a leaf that this claimer can handle, or None."""
        if not lane.is_loaded:
            yield from read_heads(self._board, [lane], min(key_heads.CHUNK, 1 + self.left))
        if lane.lacks is not None:
            yield from read_more(self._board, lane, self.left)
        return lane.best(self._board.now) if any(lane.heads) else None

    def _serve(self, path: list[tuple[_Branch, _Child]], lane: Lane, head: Head) -> None:
        id, at, attempts, most, cost, body = head
        policy = self._policy
        charged = policy.charge_of(cost) if policy.charge == "cost" else job_charges.MILLION
        turns = [child.node.turn or 0 for _, child in path]
        told = [
            (turn, child.node.credit_in(turn, child.full) - charged, child.full)
            for turn, (_, child) in zip(turns, path, strict=True)
        ]
        nodes = [child.node for _, child in path]
        share_tree.serve_path(nodes, told, policy.max_concurrent_per_key)
        self._round = turns[0]
        for turn, (branch, child) in zip(turns, path, strict=True):
            self._served[child.node.key] = child
            if child.node.turn != turn:
                branch.enter(child.node)
        lane.take(head)
        self.left -= 1
        self._picks.append(
            Pick(
                *(id, lane.share.key, at, attempts, most, body, self._round, 0),
                charged=charged,
                path=told,
            )
        )
