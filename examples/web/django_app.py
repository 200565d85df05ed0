"""Django under ASGI: a lifespan around Django opens the runtime; async and sync views find it.

    uvicorn django_app:app

Django has no lifespan of its own; Starlette brings one and passes every request on.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.routing import Mount

from harn import Runtime, from_thread, worker_queue
from jobs import STORAGE, review


async def ask(request: HttpRequest) -> JsonResponse:
    receipt = await worker_queue("reviews").submit(review, request.GET["text"])
    return JsonResponse({"job": receipt.job_id, "review": await receipt.result(timeout="30s")})


def ask_from_a_thread(request: HttpRequest) -> JsonResponse:
    receipt = from_thread(worker_queue("reviews").submit, review, request.GET["text"])
    return JsonResponse({"job": receipt.job_id, "review": from_thread(receipt.result, "30s")})


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncGenerator[None]:
    async with Runtime(storage=STORAGE):
        yield


urlpatterns = [path("reviews", ask), path("sync/reviews", ask_from_a_thread)]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"])
app = Starlette(routes=[Mount("/", get_asgi_application())], lifespan=lifespan)
