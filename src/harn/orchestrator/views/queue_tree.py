"""The tree of a queue whose keys are paths, as `queue ls`, `explain` and the portal show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from harn.storage.queue import QueueCounts, job_charges, share_tree, shown_key

Node: TypeAlias = share_tree.Node


def tree_of(
    counts: QueueCounts, nodes: Sequence[Node], policy: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the nodes as records, each with its children, by path.

    A node counts the jobs of everything below it; `own_jobs` are the ready jobs of its own path.
    """
    by_key = {node.key: node for node in nodes}
    found = {node.key: _record(counts, node, by_key, policy) for node in nodes if not node.is_leaf}
    top: list[dict[str, Any]] = []
    for key, record in found.items():
        parent = found.get(by_key[key].parent)
        (top if parent is None else parent["children"]).append(record)
    return top


def levels_of(
    counts: QueueCounts, nodes: Sequence[Node], policy: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the nodes on the path of one key, from the root on, without children."""
    by_key = {node.key: node for node in nodes}
    records = [_record(counts, node, by_key, policy) for node in nodes if not node.is_leaf]
    for record in records:
        del record["children"]
    return records


def credit_of_node(counts: QueueCounts, node: Node, by_key: Mapping[str, Node]) -> int:
    """Return the credit of a node in the round of its branch, in millionths."""
    parent = by_key.get(node.parent)
    round = counts.round if parent is None else parent.inner
    return node.credit if node.turn is None or not node.refill else node.accrued(round)


def _record(
    counts: QueueCounts, node: Node, by_key: Mapping[str, Node], policy: Mapping[str, Any]
) -> dict[str, Any]:
    path = shown_key(node.key)
    own = by_key.get(node.key.removesuffix(share_tree.NODE))
    parent = by_key.get(node.parent)
    return {
        "path": path,
        "name": path if parent is None else path[len(shown_key(parent.key)) + 1 :],
        "weight": int(policy["weights"].get(path, policy["default_weight"])),
        "deficit": credit_of_node(counts, node, by_key) / job_charges.MILLION,
        "in_flight": node.in_flight,
        "is_capped": 0 < counts.cap <= node.in_flight,
        "ready_jobs": node.ready,
        "own_jobs": 0 if own is None else own.ready,
        "children": [],
    }
