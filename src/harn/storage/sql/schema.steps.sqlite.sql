-- version: 1
CREATE TABLE job_steps (
    queue_id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    call TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    duration_ms INTEGER NOT NULL,
    PRIMARY KEY (queue_id, job_id, entry)
) STRICT, WITHOUT ROWID;
