"""The plan of a manifest that is served: its triggers, its hooks and the keys of operators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harn.errors import ManifestError
from harn.orchestrator.listen_address import SHORTEST_KEY
from harn.orchestrator.loaded_manifest import Plan, plan_triggers
from harn.orchestrator.manifest import Manifest
from harn.orchestrator.manifest_triggers import ManifestTrigger, route_of, unservable
from harn.orchestrator.secret_names import SecretName, read_secrets
from harn.orchestrator.webhook_rules import Hook, Key
from harn.triggers import Scheme, signing_key

if TYPE_CHECKING:
    from harn.runtime import Runtime


def plan_serving(runtime: Runtime, path: Path) -> Plan:
    """Read the manifest at *path*, import its handlers, read its secrets; change nothing."""
    plan = plan_triggers(runtime, path)
    manifest = plan.manifest
    hooks = [hook for trigger in manifest.triggers if (hook := _hook(runtime, manifest, trigger))]
    keys = _long_enough(
        "[serve] keys",
        read_secrets(runtime, manifest.path.parent, manifest.serve.keys, "[serve] keys"),
    )
    if manifest.setup is not None:
        manifest.resolver().resolve(manifest.setup)
    admin = tuple(value.encode() for _, value in keys)
    return Plan(manifest, plan.bindings, tuple(hooks), admin, plan.tokens)


def _hook(runtime: Runtime, manifest: Manifest, trigger: ManifestTrigger) -> Hook | None:
    if (why := unservable(trigger)) is not None:
        raise ManifestError(f"{manifest.path.name}: trigger {trigger.id!r}: {why}")
    path = route_of(trigger)
    if path is None:
        return None
    what = f"trigger {trigger.id!r}"
    signing, bearer = trigger.secrets.get("signing", ()), trigger.secrets.get("bearer", ())
    found = read_secrets(runtime, manifest.path.parent, bearer or signing, what)
    if bearer:
        _long_enough(what, found)
        keys = [Key(value.encode(), name.tenant_id or trigger.tenant_id) for name, value in found]
        return Hook(trigger.id, path, trigger.provider, "bearer", tuple(keys))
    scheme = scheme_of(trigger.provider)
    keys = [
        Key(signing_key(scheme, value, name.name), name.tenant_id or trigger.tenant_id)
        for name, value in found
    ]
    return Hook(trigger.id, path, trigger.provider, scheme, tuple(keys), trigger.body)


def _long_enough(
    what: str, found: Sequence[tuple[SecretName, str]]
) -> Sequence[tuple[SecretName, str]]:
    for name, value in found:
        if len(value) < SHORTEST_KEY:
            raise ManifestError(f"{what}: {name.name} is shorter than {SHORTEST_KEY} characters")
    return found


def scheme_of(provider: str) -> Scheme:
    """Return the signature scheme of *provider*; that of a plain webhook is Standard Webhooks."""
    schemes: dict[str, Scheme] = {"github": "github", "stripe": "stripe", "slack": "slack"}
    return schemes.get(provider, "standard")
