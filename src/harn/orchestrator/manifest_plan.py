"""A manifest with its handlers imported and its secrets read, before it takes effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harn.errors import ManifestError
from harn.orchestrator.exposure import SHORTEST_KEY
from harn.orchestrator.manifest import Manifest, read_manifest
from harn.orchestrator.manifest_triggers import ManifestTrigger, route_of, unservable
from harn.orchestrator.secret_names import SecretName, read_secrets
from harn.orchestrator.webhook_rules import Hook, Key
from harn.triggers import A2aTarget, Binding, Scheme, signing_key

if TYPE_CHECKING:
    from harn.runtime import Runtime


Tokens = Mapping[tuple[str, str], str]
"""The tokens for `a2a://` targets, by trigger id and URI."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A manifest with its handlers and secrets, before it takes effect."""

    manifest: Manifest
    bindings: tuple[Binding, ...]
    hooks: tuple[Hook, ...] = ()
    admin_keys: tuple[bytes, ...] = field(default=(), repr=False)
    tokens: Tokens = field(default_factory=dict, repr=False)


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


def plan_triggers(runtime: Runtime, path: Path, ids: Sequence[str] | None = None) -> Plan:
    """Return a plan of the triggers, or of those in *ids*, without hooks and operators' keys."""
    manifest = read_manifest(path)
    exports = manifest.resolver()
    wanted = [trigger for trigger in manifest.triggers if ids is None or trigger.id in ids]
    bindings = [manifest.bound(trigger, exports) for trigger in wanted]
    tokens = _tokens(runtime, manifest, wanted, bindings)
    return Plan(manifest, tuple(bindings), tokens=tokens)


def _tokens(
    runtime: Runtime,
    manifest: Manifest,
    triggers: Sequence[ManifestTrigger],
    bindings: Sequence[Binding],
) -> Tokens:
    tokens = {}
    for trigger, binding in zip(triggers, bindings, strict=True):
        if isinstance(binding.target, A2aTarget):
            names = trigger.secrets.get("a2a", ())
            what = f"trigger {trigger.id!r}"
            for _, value in read_secrets(runtime, manifest.path.parent, names[:1], what):
                tokens[trigger.id, binding.target.uri] = value
    return tokens


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
