"""The published JSON Schema says what the reader of manifests does."""

from __future__ import annotations

import json
from pathlib import Path

from harn.orchestrator import manifest_schema
from harn.orchestrator.manifest import TABLES
from harn.orchestrator.manifest_triggers import TRIGGER_KEYS
from harn.orchestrator.trigger_checks import POOL_KEYS
from harn.triggers.matching import MATCH_KEYS


def test_the_published_schema_is_the_one_in_the_code(root: Path) -> None:
    published = json.loads((root / "docs/reference/manifest.schema.json").read_text())

    assert published == manifest_schema()


def test_the_schema_knows_every_key_that_is_read_and_no_other() -> None:
    schema = manifest_schema()
    trigger = schema["properties"]["triggers"]["items"]
    pool = trigger["properties"]["handler"]["anyOf"][2]

    assert set(schema["properties"]) == set(TABLES)
    assert set(trigger["properties"]) == set(TRIGGER_KEYS)
    assert set(trigger["properties"]["match"]["properties"]) == set(MATCH_KEYS)
    assert set(pool["properties"]) == set(POOL_KEYS)
    assert trigger["required"] == ["id", "kind", "provider", "handler"]
