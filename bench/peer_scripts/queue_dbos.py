"""DBOS, on SQLite or PostgreSQL: each job is a workflow without steps, enqueued by a client.

It keeps status, input and output of each. On SQLite it leaves the rollback journal and FULL as
they are. Its queue looks once a second by default and starts no more than its concurrency each
time. In a drain it may therefore look every millisecond (the least that it allows) on PostgreSQL
and every ten on SQLite, where it was quickest with that; idle latency is measured with the default.
"""

import os

from _play import AT, CONCURRENCY, WHAT, did, main
from dbos import DBOS, DBOSClient, run_dbos_database_migrations

WHAT["idle"] = WHAT.get("idle") or WHAT["operation"] == "idle"
if WHAT["idle"]:
    WHAT["samples"] = 3  # it takes half a second for each
LOOK = 0.001 if "://" in AT else 0.01
OPTIONS = {} if WHAT["idle"] else {"worker_concurrency": CONCURRENCY, "polling_interval_sec": LOOK}


def url(at):
    if "://" in at:
        return at.replace("postgresql://", "postgresql+psycopg://")
    return f"sqlite:///{at}"


def launch(at):
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url(at),
            "log_level": "ERROR",
            "application_version": "1",
            "executor_id": str(os.getpid()),
        }
    )


@DBOS.workflow(name="handler")
def handler(value):
    did(value)


def make(at):
    run_dbos_database_migrations(url(at))


def putter(at):
    client = DBOSClient(system_database_url=url(at))
    options = {"queue_name": "q", "workflow_name": "handler", "app_version": "1"}
    return lambda value: client.enqueue(options, value)


def work(at, concurrency):
    import threading

    launch(at)
    DBOS.launch()
    DBOS.register_queue("q", **OPTIONS)
    threading.Event().wait()


main(make, putter, work)
