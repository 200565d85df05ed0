"""A function to begin with: `await worker_queue("reviews").submit(review, 1984)` runs it in a worker."""

from harn import durable


@durable
async def review(number: int) -> str:
    """Say what was reviewed."""
    return f"reviewed {number}"
