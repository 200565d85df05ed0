"""Django under WSGI: each process of the server opens a runtime on a thread, at its first request.

    gunicorn --workers 2 django_sync_app:app
    curl -X POST '127.0.0.1:8000/reviews?text=to+be+or+not'

Not at import: with `--preload` gunicorn imports the application before it forks.
"""

from contextlib import ExitStack
from threading import Lock

from django.conf import settings
from django.core.signals import request_started
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from harn import Runtime, from_thread, run_in_thread, worker_queue
from jobs import STORAGE, review

opening, opened = Lock(), ExitStack()  # harn closes the runtime when the process ends
runtimes: list[Runtime] = []


def open_runtime(**signal: object) -> None:
    with opening:
        if not runtimes:
            runtimes.append(opened.enter_context(run_in_thread(storage=STORAGE)))


def ask(request: HttpRequest) -> JsonResponse:
    receipt = from_thread(worker_queue("reviews").submit, review, request.GET["text"])
    return JsonResponse({"job": receipt.job_id, "review": from_thread(receipt.result, "30s")})


request_started.connect(open_runtime)
urlpatterns = [path("reviews", ask)]
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"])
app = get_wsgi_application()
