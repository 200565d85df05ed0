"""A handler to begin with: it runs every five minutes, in one of the replicas."""

from harn import TriggerEvent


async def hello(event: TriggerEvent) -> str:
    """Say when it was due."""
    return f"hello at {event.occurred_at}"
