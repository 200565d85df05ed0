-- version: 1
CREATE TABLE job_tickets (
    queue_id INTEGER NOT NULL,
    ticket TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (queue_id, ticket)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_tickets_by_job ON job_tickets (queue_id, job_id);
