"""The worker queues as `queue ls` shows them: counts, policy and the keys' shares."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from harn.orchestrator.views.inbox_view import inbox_view
from harn.orchestrator.views.queue_tree import credit_of_node, tree_of
from harn.runtime import Runtime
from harn.storage import Store, decode
from harn.storage.queue import (
    QueueCounts,
    Share,
    ShareCounts,
    job_charges,
    job_views,
    list_shares,
    queue_names,
    share_tree,
    shown_key,
)
from harn.workers import SchedulerPolicy, count_in_full, summarise

MOST_KEYS = 1000
"""The most keys of one queue that are listed."""
RECENT_MS = 3_600_000
"""A second policy causes a warning if it was used within this time."""


async def queues_view(runtime: Runtime, *, compare: bool = True) -> dict[str, Any]:
    """Return the document of `queue ls --json`.

    With *compare* it warns of consumers whose policy differs from the environment's.
    """
    policy = SchedulerPolicy.from_env()
    summaries, blocks, warnings = [], [], []
    for counts, shares in await read_counts(runtime, MOST_KEYS):
        summaries.append(summarise(counts).as_dict())
        blocks.append(await _with_tree(runtime, counts, _block(counts, shares, policy), policy))
        warnings += _warnings(counts, policy if compare else None)
    document = {
        "dispatcher": await inbox_view(runtime),
        "worker_queues": summaries,
        "scheduler": {"policy": policy.as_dict(), "per_queue": blocks},
    }
    return {**document, "warnings": warnings} if warnings else document


async def read_counts(
    runtime: Runtime, most_keys: int
) -> list[tuple[QueueCounts, list[ShareCounts]]]:
    store = runtime.service(Store)
    found = []
    for name in await store.run(queue_names, write=False):
        counts = await count_in_full(runtime, name)
        if counts is not None:
            found.append((counts, await _read_shares(store, counts, most_keys)))
    return found


async def _read_shares(store: Store, counts: QueueCounts, most: int) -> list[ShareCounts]:
    shares = await store.run(partial(list_shares, counts.queue_id, most), write=False)
    return await _with_credit_of_nodes(store, counts, shares) if counts.hierarchy else shares


async def _with_credit_of_nodes(
    store: Store, counts: QueueCounts, shares: list[ShareCounts]
) -> list[ShareCounts]:
    """Return *shares* with the credits of their paths' nodes, where a tree has them."""
    nodes = {node.key: node for node in await read_nodes(store, counts)}
    told = []
    for share in shares:
        node = nodes.get(f"{share.key}{share_tree.NODE}")
        credit = 0 if node is None else credit_of_node(counts, node, nodes)
        told.append(msgspec.structs.replace(share, credit=credit, refill=0))
    return told


async def read_nodes(store: Store, counts: QueueCounts) -> list[share_tree.Node]:
    """Read the tree of a queue, as far as it is shown."""
    look = partial(job_views.list_nodes, counts.queue_id, MOST_KEYS)
    return await store.run(look, write=False)


async def queue_block(runtime: Runtime, counts: QueueCounts) -> dict[str, Any]:
    """Return the scheduler's state of one queue, with the share of each key, and its tree."""
    policy = SchedulerPolicy.from_env()
    shares = await _read_shares(runtime.service(Store), counts, MOST_KEYS)
    return await _with_tree(runtime, counts, _block(counts, shares, policy), policy)


async def _with_tree(
    runtime: Runtime, counts: QueueCounts, block: dict[str, Any], own: SchedulerPolicy
) -> dict[str, Any]:
    """Return *block* with the tree of a queue whose keys are paths."""
    if not counts.hierarchy:
        return block
    nodes = await read_nodes(runtime.service(Store), counts)
    active = claimers_policy(counts) or own.as_dict()
    tree = tree_of(counts, nodes, active)
    return {**block, "hierarchy": counts.hierarchy, "tree": tree}


def _block(counts: QueueCounts, shares: list[ShareCounts], own: SchedulerPolicy) -> dict[str, Any]:
    active = claimers_policy(counts) or own.as_dict()
    return {
        "queue": counts.queue,
        "strategy": "fifo" if active["strategy"]["kind"] == "fifo" else "drr",
        "fairness_key": counts.dimension,
        **({} if counts.charge == "jobs" else {"charge": counts.charge}),
        "max_concurrent_per_key": active["max_concurrent_per_key"],
        "rounds_completed": counts.round,
        "starvation_promotions_total": counts.promotions,
        "selected_total": counts.dropped_selected + sum(each.selected for each in shares),
        "deferred_total": counts.dropped_deferred + sum(deferrals_of(counts, s) for s in shares),
        "keys": [
            {
                "fairness_key": shown_key(share.key),
                "weight": weight_of(active, share.key),
                "deficit": credit_of(counts, share, active),
                "in_flight": share.in_flight,
                "selected_total": share.selected,
                "deferred_total": deferrals_of(counts, share),
                "ready_jobs": share.ready,
                "oldest_ready_age_ms": age_ms(counts, share.oldest_at),
            }
            for share in sorted(shares, key=lambda each: each.key)
        ],
    }


def claimers_policy(counts: QueueCounts) -> dict[str, Any] | None:
    return None if counts.policy is None else decode(counts.policy)


def weight_of(policy: dict[str, Any], key: str) -> int:
    return int(policy["weights"].get(shown_key(key), policy["default_weight"]))


def credit_of(counts: QueueCounts, share: ShareCounts | Share, policy: dict[str, Any]) -> float:
    """Return the credit a key has left in the round under way; a debt is less than 0."""
    if counts.charge == "cost" or counts.hierarchy:
        return _exact_credit(counts, share) / job_charges.MILLION
    if share.turn is None or share.turn > counts.round or share.round == counts.round:
        return int(share.credit) if share.round == counts.round or share.turn is None else 0
    return weight_of(policy, share.key) * int(policy["strategy"].get("quantum", 1))


def _exact_credit(counts: QueueCounts, share: ShareCounts | Share) -> int:
    if share.turn is None or not share.refill:
        return share.credit
    row = (share.key, share.ready, share.in_flight, share.turn, share.round, share.credit)
    return Share(*row, share.refill, None).accrued(counts.round)


def deferrals_of(counts: QueueCounts, share: ShareCounts) -> int:
    held_back = share.turn is None and share.ready > 0
    return share.deferred + (counts.deferrals - share.deferred_from if held_back else 0)


def age_ms(counts: QueueCounts, at: int | None) -> int:
    return 0 if at is None else max(0, counts.now - at)


def _warnings(counts: QueueCounts, own: SchedulerPolicy | None) -> list[str]:
    found = []
    if own is not None and counts.policy is not None and counts.policy != own.canonical():
        found.append(
            f"queue {counts.queue!r}: its latest consumer claims by another policy than this "
            "process's environment asks for"
        )
    if counts.other_policy is not None and counts.now - counts.policy_at < RECENT_MS:
        found.append(f"queue {counts.queue!r}: consumers with different policies share it")
    return found
