"""The owners of events on their way: processes that hold a lease and renew it.

An owner dispatches the events that it took in. When its lease expires, another owner takes over
the events that are left (`inbox.take_over`).
"""

from __future__ import annotations

from harn import topics
from harn.storage.codec import draft
from harn.storage.contract import Draft
from harn.storage.operations import Operation, ask
from harn.storage.triggers.trigger_fold import lock, write

OWNER_MS = 30_000
"""How long a lease lasts, from its last renewal."""
LEFT = 0
"""The `until_ms` of an owner that has left."""


def keep_alive(owner: str) -> Operation[None]:
    """Renew the lease of *owner*, and remove what has expired."""
    yield from lock(topics.TRIGGER_OWNERS)
    [(now,)] = yield ask("now")
    rows = yield ask("trigger_owner_until", owner=owner)
    if rows and rows[0][0] == LEFT:
        return  # this call was under way when the owner left
    drafts = [_alive_draft(owner, now)]
    [(expired,)] = yield ask("trigger_dedupe_expired", before=now)
    if expired:
        drafts.append(draft(topics.TRIGGER_CLAIMS, "dedupe_pruned", {"before_ms": now}))
    [(gone,)] = yield ask("trigger_marks_expired", before=now)
    if gone:
        drafts.append(draft(topics.TRIGGER_FLOW, "marks_expired", {"before_ms": now}))
    for (silent,) in (yield ask("trigger_owners_stale", before=now - 100 * OWNER_MS)):
        drafts.append(draft(topics.TRIGGER_OWNERS, "owner_forgotten", {"owner": silent}))
    yield from write(drafts)


def leave(owner: str) -> Operation[None]:
    """End the lease of *owner*, so that its envelopes can be taken over at once."""
    yield from lock(topics.TRIGGER_OWNERS)
    rows = yield ask("trigger_owner_until", owner=owner)
    if rows:
        yield from write([draft(topics.TRIGGER_OWNERS, "owner_left", {"owner": owner})])


def renewal(owner: str, now: int) -> Operation[list[Draft]]:
    """Return the record that renews the lease of *owner*; nothing if less than half is used."""
    rows = yield ask("trigger_owner_until", owner=owner)
    if rows and (rows[0][0] > now + OWNER_MS // 2 or rows[0][0] == LEFT):
        return []
    return [_alive_draft(owner, now)]


def _alive_draft(owner: str, now: int) -> Draft:
    payload = {"owner": owner, "until_ms": now + OWNER_MS}
    return draft(topics.TRIGGER_OWNERS, "owner_alive", payload)
