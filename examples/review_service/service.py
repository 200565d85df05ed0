"""Reviews by a model: a web service, its workers, and a fake model to try them with.

    cd examples/review_service
    uvicorn service:model --port 11434 &
    uvicorn service:app &
    harn worker tasks --queue reviews --processes 2 --storage sqlite:///reviews.sqlite &
    curl -X POST '127.0.0.1:8000/reviews?customer=acme&text=to+be+or+not&wait=30s'

`kill -9` any of them while customers wait, and start it again: every review arrives. All workers
together keep to the limits of the model in `providers.toml`: look at `harn ratelimit ls`.
"""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from harn import DeadlineExceeded, JobFailed, Runtime, worker_queue
from tasks import review

STORAGE = os.environ.get("HARN_STORAGE", "sqlite:///reviews.sqlite")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with Runtime(storage=STORAGE):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/reviews")
async def ask(customer: str, text: str, wait: str = "1ms") -> dict[str, object]:
    receipt = await worker_queue("reviews").submit(review, customer, text, tenant_id=customer)
    try:
        return {"job": receipt.job_id, "review": await receipt.result(timeout=wait)}
    except DeadlineExceeded:
        return {"job": receipt.job_id}
    except JobFailed as failed:
        raise HTTPException(502, failed.error) from failed


@app.get("/reviews/{job}")
async def look(job: int) -> dict[str, object]:
    state = await worker_queue("reviews").job(job)
    if state is None:
        raise HTTPException(404, f"no review {job}")
    return {"status": state.status, "review": state.outcome, "error": state.error}


model = FastAPI()  # the fake one: it speaks OpenAI's chat completions, as many servers do


@model.post("/v1/chat/completions")
async def complete(request: dict[str, object]) -> dict[str, object]:
    await asyncio.sleep(0.3)
    message = {"role": "assistant", "content": "fine"}
    return {
        "model": request["model"],
        "choices": [{"message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 1},
    }
