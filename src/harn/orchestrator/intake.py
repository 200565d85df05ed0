"""Requests to triggers: verify the sender, accept the event, answer.

The answer is 2xx only after the event is in the store, with the claim on its delivery in the same
transaction. An unknown path and a bad signature get the same 401, and the body is not parsed.
Refusals are counted and logged once a minute at most, so that no sender can fill the log.
"""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harn import topics
from harn.errors import HarnError, InvalidOption, StorageError
from harn.naming import joined
from harn.orchestrator import a2a_rules as a2a
from harn.orchestrator.agent_card import CardOptions, card_at
from harn.orchestrator.webhook_rules import (
    Hook,
    Key,
    Proven,
    delivery_of,
    digest_of,
    kept_headers,
    kind_of,
    prove,
    read_body,
)
from harn.storage.triggers import DedupeClaim
from harn.telemetry.metrics import Metrics, Sample
from harn.triggers import Headers, Triggers, is_wanted

if TYPE_CHECKING:
    from harn.runtime import Runtime

DAY_MS = 86_400_000
KEEP_IDS_MS = 7 * DAY_MS
KEEP_BODIES_MS = 30 * DAY_MS
"""How long the id of a delivery is remembered, and the body of one without a signed id."""
BURST = 4096
BURST_PER_SENDER = 1024
REFILL_PER_S = 1024.0
MOST_SENDERS = 10_000
MOST_IN_FLIGHT = 4096
TELL_EVERY_MS = 60_000
_FORMATS = {"json": "JSON", "form": "a form"}

_NO_HOOK = Hook("", "", "webhook", "github", (Key(os.urandom(32)),))
"""The hook for unknown paths: the check then takes as long as for a known path."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a request."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


UNAUTHORIZED = Reply(401, {"error": "unauthorized"})
BUSY = Reply(503, {"error": "busy; try again"}, {"Retry-After": "1"})


class TokenBucket:
    """Requests that are accepted at once: each takes a token, and tokens are refilled with time."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens: float = tokens
        self.at: float = at

    def take(self, most: float, now: float) -> bool:
        """Take one token if there is one."""
        self.tokens = min(most, self.tokens + max(0.0, now - self.at) * REFILL_PER_S)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class Intake:
    """Accepts requests to the paths of *hooks*."""

    def __init__(self, runtime: Runtime, hooks: Iterable[Hook] = ()) -> None:
        self.runtime = runtime
        self._card = CardOptions()
        self.answers: Counter[str] = Counter()
        self.draining = False
        self._triggers = runtime.service(Triggers)
        self._hooks: dict[str, Hook] = {}
        now = runtime.clock.monotonic()
        self._all = TokenBucket(BURST, now)
        self._senders: OrderedDict[str, TokenBucket] = OrderedDict()
        self._refused: Counter[str] = Counter()
        self._told_ms = 0
        self.replace(hooks)
        runtime.service(Metrics).add(self._samples)

    def replace(self, hooks: Iterable[Hook], card: CardOptions | None = None) -> None:
        """Replace the hooks and the options of the agent card."""
        self._hooks = {hook.path: hook for hook in hooks}
        self._card = card or CardOptions()

    def card(self, path: str, origin: str) -> dict[str, Any] | None:
        """Return the agent card at *path* for a request that came to *origin*, or None."""
        return card_at(path, list(self._hooks.values()), self._card, origin)

    def knows(self, path: str) -> bool:
        """Tell whether *path* is a trigger's."""
        return path in self._hooks

    def admit(self, sender: str) -> Reply | None:
        """Decide, before the body is read, whether to accept a request; None means yes."""
        now = self.runtime.clock.monotonic()
        if self.draining or len(self._triggers.dispatcher.running) >= MOST_IN_FLIGHT:
            return self._answered(BUSY)
        bucket = self._senders.get(sender)
        if bucket is None:
            bucket = self._senders[sender] = TokenBucket(BURST_PER_SENDER, now)
            if len(self._senders) > MOST_SENDERS:
                self._senders.popitem(last=False)
        self._senders.move_to_end(sender)
        if not bucket.take(BURST_PER_SENDER, now) or not self._all.take(BURST, now):
            return self._answered(BUSY)
        return None

    async def receive(self, path: str, headers: Headers, body: bytes) -> Reply:
        """Accept a request and answer it. After a cancel, the event is either accepted or not."""
        return self._answered(await self._receive(path, headers, body))

    async def _receive(self, path: str, headers: Headers, body: bytes) -> Reply:
        hook = self._hooks.get(path)
        now_ms = self.runtime.clock.now_ms()
        proven = prove(hook or _NO_HOOK, headers, body, now_ms / 1000)
        if hook is None or not isinstance(proven, Proven):
            self._note_refusal("unknown path" if hook is None else getattr(proven, "reason", ""))
            return UNAUTHORIZED
        if _first(headers, "content-encoding").lower() not in ("", "identity"):
            return Reply(415, {"error": "a body must come as it is, not compressed"})
        try:
            payload = read_body(body, hook.body)
        except ValueError:
            return Reply(400, {"error": f"the body is not {_FORMATS[hook.body]}"})
        if hook.provider == "slack" and _is_challenge(payload):
            return Reply(200, {"challenge": payload["challenge"]})
        if hook.provider != a2a.PROVIDER:
            return await self._take_in(hook, proven, payload, headers)
        refusal = a2a.refusal_of(payload, ",".join(headers.get("a2a-version", ())))
        if refusal is not None:
            return Reply(200, refusal)
        taken = await self._take_in(hook, proven, payload, headers)
        return _as_rpc(payload, taken) if a2a.is_call(payload) else taken

    async def _take_in(self, hook: Hook, proven: Proven, payload: Any, headers: Headers) -> Reply:
        try:
            delivery = delivery_of(hook, proven, payload)
            binding = self._triggers.get(hook.trigger_id)
            event = self._triggers.new_event(
                provider=hook.provider,
                kind=kind_of(hook.provider, payload),
                payload={"payload": payload},
                tenant_id=proven.tenant_id,
                dedupe_key=delivery,
                headers=kept_headers(headers, self.runtime.settings.credential_headers),
                signature="verified",
            )
            if not is_wanted(binding, event):
                return Reply(200, {"status": "ignored"})
            by_id = delivery.startswith("id:")
            claim = DedupeClaim(
                f"{joined('hook', proven.tenant_id or '')}:{hook.trigger_id}",
                delivery,
                digest_of(hook, proven, payload),
                KEEP_IDS_MS if by_id else KEEP_BODIES_MS,
            )
            accepted = await self._triggers.accept(event, [binding], claim=claim)
        except InvalidOption as error:
            # The value comes from the sender, so it is not repeated in the answer.
            return Reply(400, {"error": f"{error.option} is not accepted: {error.accepted}"})
        except StorageError:
            return BUSY
        except HarnError:
            return UNAUTHORIZED
        if accepted.conflict:
            self._note_conflict(hook, delivery, str(accepted.known_as))
            return Reply(409, {"error": "this delivery id came with another body before"})
        if accepted.known_as is not None:
            return Reply(200, {"status": "duplicate", "event_id": accepted.known_as})
        return Reply(202, {"status": "accepted", "event_id": event.id})

    def note_refusal(self, reason: str, status: int) -> None:
        """Count a request that was refused before `receive`."""
        self.answers[str(status)] += 1
        self._note_refusal(reason)

    def _note_refusal(self, reason: str) -> None:
        self._refused[reason] += 1
        now = self.runtime.clock.now_ms()
        if now - self._told_ms < TELL_EVERY_MS:
            return
        self._told_ms = now
        counts = dict(self._refused.most_common(20))
        self._refused.clear()
        self.runtime.event_log.record(topics.TRIGGER_INTAKE, "requests_refused", counts)

    def _note_conflict(self, hook: Hook, delivery: str, event_id: str) -> None:
        self._note_refusal("delivery id with another body")
        payload = {"trigger_id": hook.trigger_id, "delivery": delivery, "event_id": event_id}
        self.runtime.event_log.record(topics.TRIGGER_INTAKE, "delivery_conflict", payload)

    def _answered(self, reply: Reply) -> Reply:
        self.answers[str(reply.status)] += 1
        return reply

    def _samples(self) -> list[Sample]:
        return [
            Sample("harn_trigger_requests_total", count, (answer,))
            for answer, count in self.answers.items()
        ]


def _as_rpc(payload: Mapping[str, Any], taken: Reply) -> Reply:
    """Return the answer to an A2A call as JSON-RPC; 503 stays as it is."""
    if taken.status in (200, 202):
        return Reply(200, a2a.answer_to(payload, taken.body.get("event_id")))
    if taken.status in (400, 409):
        return Reply(200, a2a.refused_call(payload, a2a.BAD_PARAMS, taken.body["error"]))
    return taken


def _first(headers: Headers, name: str) -> str:
    values = headers.get(name, ())
    return values[0] if values else ""


def _is_challenge(payload: Any) -> bool:
    return (
        isinstance(payload, dict)
        and payload.get("type") == "url_verification"
        and isinstance(payload.get("challenge"), str)
        and len(payload["challenge"]) <= 1000
    )
