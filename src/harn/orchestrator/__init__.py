"""The orchestrator: a manifest in, triggers and queues running.

hooks.py    what a request to a trigger says; intake.py, taking it in
"""

from harn.orchestrator.hooks import Hook, Key
from harn.orchestrator.intake import Intake, Reply

__all__ = ["Hook", "Intake", "Key", "Reply"]
