"""The A2A agent card: describes the hooks for agents to their peers. Pure.

It is read without a key, so it contains only paths, the ways to authenticate, and the values of
`[a2a.card]`: no trigger ids, handlers, queues, tenants or names of secrets. It has the fields of
protocol 1.0 and of 0.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from harn.errors import InvalidOption

if TYPE_CHECKING:
    from harn.orchestrator.webhook_rules import Hook

WELL_KNOWN = "/.well-known/agent-card.json"
LONGEST = 500
_TAKES = "A message becomes an event; the answer is a task in the state submitted."


class CardOptions(msgspec.Struct, frozen=True):
    """What `[a2a.card]` publishes; *url* is where peers reach the service, without a path."""

    name: str = "harn"
    description: str = "Takes in messages as events for its triggers."
    version: str = "1"
    url: str | None = None


def check_card(key: str, value: Any) -> str:
    """Return *value* of *key* in `[a2a.card]`, if it can be published."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isprintable():
        raise InvalidOption(key, value, f"text of at most {LONGEST} printable characters")
    return _check_origin(value, key) if key == "url" else value


def _check_origin(url: str, option: str) -> str:
    from harn.triggers import read_url

    if read_url(url, option).target != "/":
        raise InvalidOption(option, url, "https://host[:port], without a path")
    return url


def card_at(
    path: str, hooks: Sequence[Hook], options: CardOptions, origin: str
) -> dict[str, Any] | None:
    """Return the card that is served at *path*, or None.

    The well-known path has all hooks for agents on its card; the same path below a hook's own has
    that one. *origin* is where the request came to, for a card without a *url*; an
    `InvalidOption` if that is no web address.
    """
    offered = [hook for hook in hooks if hook.provider == "a2a-push" and hook.proof == "bearer"]
    if path != WELL_KNOWN:
        offered = [hook for hook in offered if hook.path.rstrip("/") + WELL_KNOWN == path]
    if not offered:
        return None
    return _card(offered, options, (options.url or _check_origin(origin, "host")).rstrip("/"))


def _card(hooks: Sequence[Hook], options: CardOptions, base: str) -> dict[str, Any]:
    return {
        "name": options.name,
        "description": options.description,
        "version": options.version,
        "supportedInterfaces": [
            {"url": base + hook.path, "protocolBinding": "JSONRPC", "protocolVersion": version}
            for hook in hooks
            for version in ("1.0", "0.3")
        ],
        "capabilities": {
            "streaming": False,
            "pushNotifications": False,
            "extendedAgentCard": False,
        },
        "defaultInputModes": ["text/plain", "application/json"],
        "defaultOutputModes": ["application/json"],
        "skills": [_skill(hook) for hook in hooks],
        "securitySchemes": {
            "bearer": {
                "httpAuthSecurityScheme": {"scheme": "Bearer"},
                "type": "http",
                "scheme": "Bearer",
            },
            "notificationToken": {
                "apiKeySecurityScheme": {"location": "header", "name": "X-A2A-Notification-Token"},
                "type": "apiKey",
                "in": "header",
                "name": "X-A2A-Notification-Token",
            },
        },
        "securityRequirements": [
            {"schemes": {"bearer": {"list": []}}},
            {"schemes": {"notificationToken": {"list": []}}},
        ],
        # The fields of protocol 0.3.
        "url": base + hooks[0].path,
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
        "security": [{"bearer": []}, {"notificationToken": []}],
    }


def _skill(hook: Hook) -> dict[str, Any]:
    name = hook.path.strip("/") or "messages"
    return {"id": name, "name": name, "description": _TAKES, "tags": ["events"]}
