"""A manifest with its handlers imported and its secrets read, before it takes effect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from harn.orchestrator.manifest import Manifest, read_manifest
from harn.orchestrator.manifest_triggers import ManifestTrigger
from harn.orchestrator.secret_names import read_secrets

if TYPE_CHECKING:
    from harn.orchestrator.webhook_rules import Hook
    from harn.runtime import Runtime
    from harn.triggers import Binding

Tokens = Mapping[tuple[str, str], str]
"""The tokens for `a2a://` targets, by trigger id and URI."""


class Plan(msgspec.Struct, frozen=True):
    """A manifest with its handlers and secrets, before it takes effect."""

    manifest: Manifest
    bindings: tuple[Binding, ...]
    hooks: tuple[Hook, ...] = ()
    admin_keys: tuple[bytes, ...] = ()
    tokens: Tokens = {}

    def __repr__(self) -> str:  # without keys and tokens
        return f"Plan({self.manifest!r}, {self.bindings!r}, {self.hooks!r})"


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
        names = trigger.secrets.get("a2a", ())[:1]
        if not names:
            continue
        from harn.triggers import A2aTarget

        if isinstance(binding.target, A2aTarget):
            what = f"trigger {trigger.id!r}"
            for _, value in read_secrets(runtime, manifest.path.parent, names, what):
                tokens[trigger.id, binding.target.uri] = value
    return tokens
