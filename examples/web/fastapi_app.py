"""FastAPI: the lifespan opens the runtime, and every handler finds it.

    uvicorn fastapi_app:app
    curl -X POST '127.0.0.1:8000/reviews?text=to+be+or+not'

Handlers that are `async def` await harn. Plain ones run on threads and use `from_thread`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from harn import Runtime, from_thread, worker_queue
from jobs import STORAGE, review


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with Runtime(storage=STORAGE):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/reviews")
async def ask(text: str) -> dict[str, object]:
    receipt = await worker_queue("reviews").submit(review, text)
    return {"job": receipt.job_id, "review": await receipt.result(timeout="30s")}


@app.post("/sync/reviews")
def ask_from_a_thread(text: str) -> dict[str, object]:
    receipt = from_thread(worker_queue("reviews").submit, review, text)
    return {"job": receipt.job_id, "review": from_thread(receipt.result, "30s")}
