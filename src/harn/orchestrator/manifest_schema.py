"""The JSON Schema of `harn.toml`, with which editors complete and check it."""

from __future__ import annotations

from typing import Any

from harn.orchestrator.agent_card import CardOptions
from harn.orchestrator.body_formats import BODY_FORMATS
from harn.orchestrator.manifest import LONGEST_PIPELINE
from harn.triggers import KINDS, PROVIDERS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string", "minLength": 1}
_DURATION: Schema = {
    "anyOf": [
        {"type": "string", "pattern": r"^\d+(\.\d+)?(ms|s|m|h|d|w)$"},
        {"type": "number", "exclusiveMinimum": 0},
    ],
    "description": 'A duration with its unit, such as "30s"; a bare number is seconds.',
}
_PATH: Schema = {
    "type": "string",
    "description": 'A dotted path into the event, such as "provider_payload.payload.source".',
}
_COUNT: Schema = {"type": "integer", "minimum": 1}
_REFERENCE: Schema = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]*::[A-Za-z][A-Za-z0-9_]*$"}
_SECRET: Schema = {
    "description": "The name of an environment variable, or file:path. Never the secret itself.",
    "anyOf": [
        {"type": "string", "pattern": "^([A-Z_][A-Z0-9_]*|file:.+)$"},
        {
            "type": "object",
            "properties": {"name": _TEXT, "tenant": _TEXT},
            "required": ["name"],
            "additionalProperties": False,
        },
    ],
}
_PIPELINE: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": LONGEST_PIPELINE,
    "description": "The pipeline of pools with scope pipeline; by default the directory's name.",
}
_CARD: Schema = {
    "type": "object",
    "description": "What the agent card of the hooks for agents publishes.",
    "properties": dict.fromkeys(CardOptions.__struct_fields__, _TEXT),
    "additionalProperties": False,
}
_SECRETS: Schema = {"anyOf": [_SECRET, {"type": "array", "items": _SECRET}]}


def manifest_schema() -> Schema:
    """Return the schema, JSON-ready.

    >>> manifest_schema()["title"]
    'harn.toml'
    """
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "harn.toml",
        **_object(
            {
                "exports": {
                    "type": "object",
                    "description": "Where handlers are: a file beside the manifest, or a module.",
                    "additionalProperties": _TEXT,
                },
                "orchestrator": _object({"setup": _REFERENCE, "pipeline": _PIPELINE}),
                "serve": _object(
                    {
                        "bind": {"type": "string", "default": "127.0.0.1:8080"},
                        "keys": _SECRETS,
                        "queues": {"type": "array", "items": _TEXT},
                    }
                ),
                "a2a": _object({"allow": {"type": "array", "items": _TEXT}, "card": _CARD}),
                "providers": {
                    "type": "object",
                    "description": "Model providers, as in providers.toml.",
                    "additionalProperties": {"type": "object"},
                },
                "budgets": {
                    "type": "object",
                    "description": "What the model calls of each tenant may use.",
                    "additionalProperties": _budget(),
                },
                "triggers": {"type": "array", "items": _trigger()},
            }
        ),
    }


def _budget() -> Schema:
    return _object(
        {
            "usd": {"type": "number", "exclusiveMinimum": 0},
            "tokens": _COUNT,
            "window": {**_DURATION, "default": "1d"},
            "on_spent": {"enum": ["refuse", "wait"], "default": "refuse"},
        }
    )


def _trigger() -> Schema:
    providers = sorted({name for names in PROVIDERS.values() for name in names})
    window = _object({"max": _COUNT, "period": _DURATION, "key": _PATH}, "max", "period")
    return _object(
        {
            "id": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"},
            "kind": {"enum": list(KINDS)},
            "provider": {"enum": providers},
            "match": _match(),
            "filter": {"type": "object"},
            "handler": {"anyOf": [_REFERENCE, {"type": "string", "pattern": "://"}, _pool()]},
            "priority": {
                "anyOf": [
                    {"enum": ["high", "normal", "low"]},
                    _object({"key": _PATH, "order": {"type": "array"}}, "key", "order"),
                ]
            },
            "path": {"type": "string", "pattern": "^/"},
            "body": {"enum": list(BODY_FORMATS), "default": "json"},
            "tenant_id": _TEXT,
            "secrets": _object({"signing": _SECRETS, "bearer": _SECRETS, "a2a": _SECRETS}),
            "batch": _object(
                {"size": _COUNT, "timeout": _DURATION, "key": _PATH}, "size", "timeout"
            ),
            "debounce": _object({"period": _DURATION, "key": _PATH}, "period"),
            "rate_limit": window,
            "throttle": window,
            "singleton": {"anyOf": [{"type": "boolean"}, _object({"key": _PATH})]},
            "concurrency": {"anyOf": [_COUNT, _object({"max": _COUNT, "key": _PATH}, "max")]},
            "retry": _object(
                {
                    "max": {"type": "integer", "minimum": 0, "maximum": 100},
                    "backoff": {"enum": ["immediate", "svix", "linear", "exponential"]},
                    "delay": _DURATION,
                    "retention_days": _COUNT,
                }
            ),
            "dedupe_key": _PATH,
            **_SCHEDULE,
        },
        *("id", "kind", "provider", "handler"),
    )


_SCHEDULE: Schema = {
    "schedule": {"type": "string", "description": 'Five cron fields such as "0 2 * * *".'},
    "timezone": {"type": "string", "description": 'An IANA zone such as "Europe/Berlin".'},
    "catchup_mode": {"enum": ["skip", "latest", "all"]},
}


def _match() -> Schema:
    return _object(
        {
            "events": {"type": "array", "items": _TEXT, "maxItems": 100},
            "filter": {"type": "object"},
            "path": {"type": "string", "pattern": "^/"},
            "topic": {"type": "string", "pattern": "^[A-Za-z0-9._-]+$"},
            **_SCHEDULE,
        }
    )


def _pool() -> Schema:
    return _object(
        {"pool": _TEXT, "task_factory": _REFERENCE, "priority_from": _PATH, "key_from": _PATH},
        *("pool", "task_factory"),
    )


def _object(properties: Schema, *required: str) -> Schema:
    found: Schema = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        found["required"] = list(required)
    return found
