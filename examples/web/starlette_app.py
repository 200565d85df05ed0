"""Starlette: the lifespan opens the runtime, and every endpoint finds it.

    uvicorn starlette_app:app

Endpoints that are plain functions run on threads and use `from_thread`.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from harn import Runtime, from_thread, worker_queue
from jobs import STORAGE, review


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    async with Runtime(storage=STORAGE):
        yield


async def ask(request: Request) -> JSONResponse:
    receipt = await worker_queue("reviews").submit(review, request.query_params["text"])
    return JSONResponse({"job": receipt.job_id, "review": await receipt.result(timeout="30s")})


def ask_from_a_thread(request: Request) -> JSONResponse:
    receipt = from_thread(worker_queue("reviews").submit, review, request.query_params["text"])
    return JSONResponse({"job": receipt.job_id, "review": from_thread(receipt.result, "30s")})


routes = [
    Route("/reviews", ask, methods=["POST"]),
    Route("/sync/reviews", ask_from_a_thread, methods=["POST"]),
]
app = Starlette(routes=routes, lifespan=lifespan)
