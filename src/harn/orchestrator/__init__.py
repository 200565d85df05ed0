"""The orchestrator: a manifest in, triggers and queues running.

manifest.py   harn.toml as frozen records; triggertables.py, its triggers; problems.py, mistakes
exports.py    from `handlers::on_task` to a callable
secrets.py    secrets by name
hooks.py      what a request to a trigger says; intake.py, taking it in
"""

from harn.orchestrator.exports import Exports
from harn.orchestrator.hooks import Hook, Key
from harn.orchestrator.intake import Intake, Reply
from harn.orchestrator.manifest import Manifest, ServeOptions, read_manifest
from harn.orchestrator.problems import ManifestProblems, Problem
from harn.orchestrator.triggertables import ManifestTrigger

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
    "read_manifest",
]
