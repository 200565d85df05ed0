"""Hold the jobs that a scheduler chose: their rows, their shares and their records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import msgspec
from msgspec import UNSET, UnsetType

from harn.storage.contract import Draft
from harn.storage.operations import Ask, Operation, Row, ask_many
from harn.storage.queue.gathered_records import queue_headers
from harn.storage.queue.job_index import Shifts
from harn.storage.queue.job_records import Choice, Choose, ClaimedJob, Pick, shown_key
from harn.storage.queue.pool_records import ROTATION
from harn.storage.queue.queue_row import (
    CLAIM_COLUMNS,
    SERVE_COLUMNS,
    Holding,
    QueueState,
    set_alarm,
    write_holding,
)
from harn.storage.queue.settle import read_bodies
from harn.storage.queue.share_keys import adopt_policy
from harn.storage.queue.share_tree import write_served
from harn.storage.queue.share_turns import Share
from harn.storage.queue.time_histogram import AGE_BOUNDS, add_times
from harn.topics import queue_topics

_encode = msgspec.json.encode
_key_of: Callable[[Pick], str] = attrgetter("key")
_is_promoted: Callable[[Pick], bool] = attrgetter("promoted")


class Claiming(msgspec.Struct, frozen=True):
    """A request for jobs: the claimer, how many jobs, and its policy."""

    consumer: str
    claim_ids: tuple[str, ...]
    """One for each job that is wanted."""
    ttl_ms: int
    look: Ask
    """The first question of the policy, asked ahead."""
    choose: Choose
    policy: str
    strategy: str
    dimension: str
    cap: int
    charge: str = "jobs"
    hierarchy: str = ""
    triggers: frozenset[str] | None = None
    """The trigger ids and functions (`function_need`) that the claimer can handle; None for all
    jobs, also those without one."""
    lease: str | None = None
    """The claimer's lease: when it expires, so do its claims."""


class _Scheduling(msgspec.Struct, frozen=True, gc=False):
    """How a job was chosen, in the record of its claim."""

    strategy: str
    fairness_key: str
    key: str
    round: int | UnsetType = UNSET
    credit: int | UnsetType = UNSET
    promoted: bool | UnsetType = UNSET
    policy: msgspec.Raw | UnsetType = UNSET
    """The claimer's policy, in the first record by a policy that is not the queue's."""
    charged_millionths: int | UnsetType = UNSET
    """Where a pick costs what its job does: its cost, its key's credit, and what a round adds."""
    credit_millionths: int | UnsetType = UNSET
    refill_millionths: int | UnsetType = UNSET
    path: list[tuple[int, int, int]] | UnsetType = UNSET
    """Of a key that is a path: round, credit and refill of each level, in millionths."""


class _ClaimRecord(msgspec.Struct, frozen=True, gc=False):
    """A `job_claimed` record."""

    job_event_id: int
    claim_id: str
    consumer_id: str
    claimed_at_ms: int
    expires_at_ms: int
    attempt: int
    scheduling: _Scheduling
    lease: str | UnsetType = UNSET


def hold_choice(
    state: QueueState, claiming: Claiming, choice: Choice
) -> Operation[list[ClaimedJob]]:
    """Claim the chosen jobs: their rows, their shares and their records.

    The rows are left in the state, to be written with its end or by `write_holding`.
    """
    topic, headers = queue_topics(state.name).claims, queue_headers(state.name)
    now, expires = state.now, state.now + claiming.ttl_ms
    lease = UNSET if claiming.lease is None else claiming.lease
    yield from _write_claims(state, claiming, choice, expires)
    adopted = yield from _adopt_policy(state, claiming)
    jobs: list[ClaimedJob] = []
    for pick, claim_id in zip(choice.picks, claiming.claim_ids, strict=False):
        attempt = pick.attempts + 1
        jobs.append(
            ClaimedJob(
                *(pick.id, pick.body or b"", pick.enqueued_at, attempt, pick.max_attempts),
                *(claim_id, expires, now),
            )
        )
        scheduling = _scheduling(state, claiming, pick)
        if adopted is not None:
            scheduling, adopted = msgspec.structs.replace(scheduling, policy=adopted), None
        record = _ClaimRecord(
            *(pick.id, claim_id, claiming.consumer, now, expires, attempt, scheduling, lease)
        )
        state.drafts.append(Draft(topic, "job_claimed", _encode(record), headers, now))
    return jobs


def _adopt_policy(state: QueueState, claiming: Claiming) -> Operation[msgspec.Raw | None]:
    """Let the queue follow the policy of its latest claimer; return it if it is another one."""
    policy = claiming.policy
    if policy == state.policy or not policy:  # a pool has none
        return None
    yield from adopt_policy(state, policy)
    return msgspec.Raw(policy.encode())


def fill_bodies(state: QueueState, jobs: Sequence[ClaimedJob]) -> Operation[None]:
    """Read the records of claimed jobs whose records did not come with the choice."""
    empty = [job for job in jobs if not job.body]
    if empty:
        found = yield from read_bodies(queue_topics(state.name).jobs, [job.id for job in empty])
        for job in empty:
            job.body = found[job.id]


def _write_claims(
    state: QueueState, claiming: Claiming, choice: Choice, expires: int
) -> Operation[None]:
    picks = choice.picks
    drr = claiming.strategy == "drr"
    rows: list[Row] = [
        (
            *(state.queue_id, pick.id, claim_id, claiming.consumer, expires, state.now),
            *(pick.round if drr and pick.path is None else None, claiming.lease, pick.charged),
        )
        for pick, claim_id in zip(picks, claiming.claim_ids, strict=False)
    ]
    waited = [state.now - pick.enqueued_at for pick in picks]
    state.ages = add_times(state.ages, waited, AGE_BOUNDS)
    yield from _serve(state, claiming, choice, rows)
    set_alarm(state, expires)
    state.round, state.last_key, state.promoted = choice.round, choice.last_key, choice.promoted
    state.promotions += sum(map(_is_promoted, picks))
    state.is_changed = True


def _scheduling(state: QueueState, claiming: Claiming, pick: Pick) -> _Scheduling:
    about = (claiming.strategy, state.dimension, shown_key(pick.key))
    if claiming.strategy not in ("drr", ROTATION):
        return _Scheduling(*about)
    promoted = True if pick.promoted else UNSET
    if pick.path is not None and pick.charged is not None:
        return _Scheduling(
            *about, promoted=promoted, charged_millionths=pick.charged, path=pick.path
        )
    if pick.charged is None:
        return _Scheduling(*about, pick.round, pick.credit, promoted)
    return _Scheduling(
        *about,
        pick.round,
        promoted=promoted,
        charged_millionths=pick.charged,
        credit_millionths=pick.credit,
        refill_millionths=pick.refill,
    )


def _serve(
    state: QueueState, claiming: Claiming, choice: Choice, rows: Sequence[Row]
) -> Operation[None]:
    served = Counter(map(_key_of, choice.picks))
    if claiming.strategy in ("drr", ROTATION):
        promoted = Counter(pick.key for pick in choice.picks if pick.promoted)
        state.holding = Holding(rows, share_rows(state, served, promoted, choice.shares))
        if choice.nodes:
            yield from write_served(state, choice.nodes)
        return
    state.holding = Holding(rows, ())
    yield from write_holding(state)
    if state.cap or state.hierarchy:
        # A key that reaches its cap on the way loses its turn there, as it does in the fold, which
        # sees one claim at a time. Only a queue that another claimer's policy caps has such keys.
        # In a tree a branch's round depends on each claim before.
        for pick in choice.picks:
            yield from _move(state, Counter({pick.key: 1}))
    else:
        yield from _move(state, served)


def _move(state: QueueState, served: Counter[str]) -> Operation[None]:
    """Move so many jobs of each key from ready to in flight."""
    shifts = Shifts()
    for key, count in served.items():
        shifts.add(key, ready=-count, in_flight=count, selected=count)
    yield from shifts.apply(state)


# -- rows of claims and shares, also for the fold


def hold_job(state: QueueState, claim: Row, enqueued_at: int) -> Operation[None]:
    """Enter a claim: job id, claim id, consumer, expiry, time, round, lease, charge."""
    state.ages = add_times(state.ages, [state.now - enqueued_at], AGE_BOUNDS)
    yield ask_many("claim_jobs", CLAIM_COLUMNS, [(state.queue_id, *claim)])


def serve_shares(
    state: QueueState, served: Counter[str], promoted: Counter[str], shares: Iterable[Share]
) -> Operation[None]:
    """Write shares as a scheduler left them."""
    yield ask_many("serve_shares", SERVE_COLUMNS, share_rows(state, served, promoted, shares))


def share_rows(
    state: QueueState, served: Counter[str], promoted: Counter[str], shares: Iterable[Share]
) -> list[Row]:
    """Return the rows of shares as a scheduler left them."""
    rows: list[Row] = []
    for share in shares:
        key = share.key
        rows.append(
            (
                *(state.queue_id, key, served[key], promoted[key], share.turn, share.round),
                *(share.credit, state.deferrals, share.oldest_at, int(share.knows_oldest)),
                share.refill,
            )
        )
    return rows
