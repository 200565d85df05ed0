"""What the workers run: a review asks the model once, and is tried again when that fails."""

from harn import RetryPolicy, durable, llm_call


@durable(retry=RetryPolicy(backoff="500ms", max_backoff="10s"), timeout="30s")
async def review(customer: str, text: str) -> str:
    reply = await llm_call(f"Review this for {customer}: {text}")
    return reply.text
