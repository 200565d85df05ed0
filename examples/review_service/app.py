"""A web service that hands reviews to workers. Start it, then two workers beside it:

    cd examples/review_service
    uvicorn app:app
    harn worker tasks --queue reviews --processes 2 --storage sqlite:///reviews.sqlite

Look at what comes back while you kill -9 one of the worker processes: every review arrives.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from harn import DeadlineExceeded, JobFailed, Runtime, worker_queue
from tasks import review

STORAGE = os.environ.get("HARN_STORAGE", "sqlite:///reviews.sqlite")


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
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
