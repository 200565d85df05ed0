"""What differs between two manifests, including their secrets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from harn.orchestrator.loaded_manifest import Plan
from harn.orchestrator.manifest_triggers import ManifestTrigger

AT_START = frozenset(("orchestrator.pipeline", "serve.bind"))
"""What takes effect only when the service starts."""


def changes(before: Plan, after: Plan) -> list[str]:
    """Return the names of everything that differs, such as `triggers.hook.secrets.signing`.

    A secret with the same name and another value differs.
    """
    was, now = dict(_parts(before)), dict(_parts(after))
    names = sorted(was.keys() | now.keys())
    return [name for name in names if was.get(name) != now.get(name)]


def _parts(plan: Plan) -> Iterator[tuple[str, bytes]]:
    """Yield each part of a plan with its value as JSON bytes, in which `true` is not 1."""
    manifest = plan.manifest
    yield "a2a.allow", _bytes(manifest.a2a_allow)
    yield "a2a.card", _bytes(manifest.card)
    yield "orchestrator.pipeline", _bytes(manifest.pipeline)
    yield "orchestrator.setup", _bytes(manifest.setup)
    yield "serve.bind", _bytes(manifest.serve.bind)
    yield "serve.keys", _bytes((manifest.serve.keys, plan.admin_keys))
    yield "serve.queues", _bytes(manifest.serve.queues)
    for name, source in manifest.exports.items():
        yield f"exports.{name}", _bytes(source)
    for trigger in manifest.triggers:
        yield f"triggers.{trigger.id}", b"present"
        for key, value in _trigger_parts(plan, trigger):
            yield f"triggers.{trigger.id}.{key}", _bytes(value)


def _trigger_parts(plan: Plan, trigger: ManifestTrigger) -> Iterator[tuple[str, Any]]:
    for key in ("kind", "provider", "match", "handler", "path", "body", "tenant_id"):
        yield key, getattr(trigger, key)
    yield from trigger.options.items()
    keys = [hook.keys for hook in plan.hooks if hook.trigger_id == trigger.id]
    tokens = [token for (id, _), token in plan.tokens.items() if id == trigger.id]
    proof = "bearer" if trigger.secrets.get("bearer") else "signing"
    for kind in ("signing", "bearer", "a2a"):
        values = keys if kind == proof else tokens if kind == "a2a" else []
        yield f"secrets.{kind}", (trigger.secrets.get(kind, ()), values)


def _bytes(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
