"""Secrets by name: a manifest contains the names of secrets, never their values.

A name is an environment variable (or `<NAME>_FILE`, a file with the value), or `file:path` beside
the manifest. Values are read when the service starts, are masked in logs and records, and never
appear in an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from harn.errors import InvalidOption, ManifestError
from harn.settings import read_secret
from harn.triggers import Secrets

if TYPE_CHECKING:
    from harn.runtime import Runtime

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}", re.ASCII)
_ACCEPTED = (
    'the name of an environment variable ("GITHUB_SECRET"), or "file:path"; not the secret itself'
)


class SecretName(msgspec.Struct, frozen=True):
    """The name of a secret, and the tenant that it belongs to."""

    name: str
    tenant_id: str | None = None


def check_secrets(option: str, value: Any) -> tuple[SecretName, ...]:
    """Read the names of secrets: one, or a list; each a name or `{ name, tenant }`."""
    given = value if isinstance(value, list) else [value]
    return tuple(_name(option, each) for each in given)


def _name(option: str, value: Any) -> SecretName:
    tenant = None
    if isinstance(value, dict) and set(value) <= {"name", "tenant"}:
        tenant, value = value.get("tenant"), value.get("name")
        if tenant is not None and not (isinstance(tenant, str) and tenant and tenant.isprintable()):
            raise InvalidOption(option, "<tenant>", "a tenant's name")
    is_file = isinstance(value, str) and value.startswith("file:") and len(value) > 5
    # What is not a name may be the secret itself, so the error does not repeat it.
    if not isinstance(value, str) or not (is_file or _VARIABLE.fullmatch(value)):
        raise InvalidOption(option, "<hidden>", _ACCEPTED)
    return SecretName(value, tenant)


def read_secrets(
    runtime: Runtime, directory: Path, names: Iterable[SecretName], what: str
) -> list[tuple[SecretName, str]]:
    """Read each of *names*; raise `ManifestError` that names a missing or empty one."""
    found = []
    for secret in names:
        value = _value(directory, secret.name)
        if value is None or not value.strip():
            raise ManifestError(f"{what}: the secret {secret.name} is not set, or empty")
        runtime.service(Secrets).register(value)
        found.append((secret, value.strip()))
    return found


def _value(directory: Path, name: str) -> str | None:
    if not name.startswith("file:"):
        return read_secret(name)
    try:
        return (directory / name.removeprefix("file:")).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
