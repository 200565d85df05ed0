"""A served application on loopback, and a client that speaks to it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httpx2

from harn import HarnError, Runtime, TriggerEvent, trigger_register
from harn.orchestrator import ActedBy, Hook, Intake, Key, Options, Running, Verb
from harn.portal import Listening, bind, build_app
from harn.triggers import Scheme, Triggers, sign

OLD, NEW = b"the old signing key", b"the new signing key"
PROVIDERS: dict[Scheme, Any] = {
    "github": "github",
    "stripe": "stripe",
    "slack": "slack",
    "standard": "standard",
}


@dataclass
class Site:
    runtime: Runtime
    intake: Intake
    client: httpx2.AsyncClient
    port: int
    seen: list[TriggerEvent] = field(default_factory=list)
    admin_keys: Sequence[bytes] = ()

    async def is_ready(self) -> bool:
        return not self.intake.draining

    def operate(self, verb: Verb, options: Options, by: ActedBy | None = None) -> Running:
        raise HarnError(f"{verb.name} with {options}: no service behind this site")

    async def look(self, verb: Verb, options: Options) -> dict[str, Any]:
        raise HarnError(f"{verb.name} with {options}: no service behind this site")

    def now(self) -> int:
        return self.runtime.clock.now_ms() // 1000

    async def send(
        self,
        scheme: Scheme,
        payload: Any,
        secret: bytes = NEW,
        id: str = "msg_1",
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        signed = {**sign(scheme, secret, body, self.now(), id), **(headers or {})}
        return await self.client.post(f"/hooks/{scheme}", content=body, headers=signed)

    async def settled(self) -> None:
        await self.runtime.service(Triggers).dispatcher.idle()


@contextlib.asynccontextmanager
async def site(storage: str = "memory://", admin_keys: Sequence[bytes] = ()) -> AsyncIterator[Site]:
    """Serve one hook of every scheme, and one for agents, under two keys each."""
    async with Runtime(storage=storage) as runtime:
        hooks = [
            Hook(f"on-{name}", f"/hooks/{name}", name, name, (Key(OLD), Key(NEW)))
            for name in PROVIDERS
        ]
        agents = (Key(b"key of acme 12345", "acme"), Key(b"key of other 6789", "other"))
        hooks.append(Hook("on-agent", "/a2a", "a2a-push", "bearer", agents))
        intake = Intake(runtime, hooks)
        client = httpx2.AsyncClient(timeout=30, trust_env=False)
        made = Site(runtime, intake, client, 0, admin_keys=admin_keys)

        async def handler(event: TriggerEvent) -> None:
            made.seen.append(event)

        for hook in hooks:
            await trigger_register(
                id=hook.trigger_id,
                kind="a2a-push" if hook.proof == "bearer" else "webhook",
                provider=cast(Any, hook.provider),
                match={},
                handler=handler,
            )
        listening = Listening(build_app(made), bind("127.0.0.1", 0))
        async with listening:
            made.port = int(listening.address.rsplit(":", 1)[1])
            client.base_url = httpx2.URL(f"http://{listening.address}")
            try:
                yield made
            finally:
                await client.aclose()
