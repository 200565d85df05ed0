"""State that lasts: stored values, and the steps of durable work.

steps.py    step: run once in a job or durable pool task, and remembered by its later attempts
"""

from harn.state.steps import step, take_number

__all__ = ["step", "take_number"]
