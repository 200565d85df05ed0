"""Flask: each process of the server opens a runtime on a thread, at its first request.

    gunicorn --workers 2 flask_app:app
    curl -X POST '127.0.0.1:8000/reviews?text=to+be+or+not'

Not at import: with `--preload` gunicorn imports the application before it forks.
"""

from contextlib import ExitStack
from threading import Lock

from flask import Flask, request

from harn import from_thread, run_in_thread, worker_queue
from jobs import STORAGE, review

app = Flask(__name__)
opening, opened = Lock(), ExitStack()  # harn closes the runtime when the process ends


@app.before_request
def open_runtime() -> None:
    with opening:
        if "harn" not in app.extensions:
            app.extensions["harn"] = opened.enter_context(run_in_thread(storage=STORAGE))


@app.post("/reviews")
def ask() -> dict[str, object]:
    receipt = from_thread(worker_queue("reviews").submit, review, request.args["text"])
    return {"job": receipt.job_id, "review": from_thread(receipt.result, "30s")}
