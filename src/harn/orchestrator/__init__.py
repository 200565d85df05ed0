"""The orchestrator: a manifest in, triggers and queues running.

manifest.py   harn.toml as frozen records; triggertables.py, its triggers; triggerparts.py, their
              parts, checked one by one; problems.py, mistakes
exports.py    from `handlers::on_task` to a callable
draining.py   from a queue's job to its handler
views.py      what the queues look like from outside; overview.py, everything at a glance
secrets.py    secrets by name
plan.py       a manifest made ready; changes.py, what is different between two
service.py    the composition root: start, reload, drain
inspecting.py what can be seen from outside; schema.py, the manifest for editors
hooks.py      what a request to a trigger says; intake.py, taking it in
"""

from harn.orchestrator.draining import manifest_consumer
from harn.orchestrator.exports import Exports
from harn.orchestrator.hooks import Hook, Key
from harn.orchestrator.inspecting import inspection
from harn.orchestrator.intake import Intake, Reply
from harn.orchestrator.manifest import (
    Manifest,
    ServeOptions,
    examine_manifest,
    read_manifest,
)
from harn.orchestrator.overview import overview, shares_of
from harn.orchestrator.problems import ManifestProblems, Problem
from harn.orchestrator.schema import manifest_schema
from harn.orchestrator.service import Service, check_exposure
from harn.orchestrator.triggertables import ManifestTrigger, unservable
from harn.orchestrator.views import explain, queue_samples, queues_view

__all__ = [
    "Exports",
    "Hook",
    "Intake",
    "Key",
    "Manifest",
    "ManifestProblems",
    "ManifestTrigger",
    "Problem",
    "Reply",
    "ServeOptions",
    "Service",
    "check_exposure",
    "examine_manifest",
    "explain",
    "inspection",
    "manifest_consumer",
    "manifest_schema",
    "overview",
    "queue_samples",
    "queues_view",
    "read_manifest",
    "shares_of",
    "unservable",
]
