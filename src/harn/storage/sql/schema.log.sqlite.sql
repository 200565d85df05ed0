-- version: 1
CREATE TABLE topics (
    topic_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    head INTEGER NOT NULL,
    largest INTEGER NOT NULL,
    newest_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    occurred_at_ms INTEGER NOT NULL,
    UNIQUE (topic_id, id)
) STRICT;
CREATE TABLE cursors (
    topic TEXT NOT NULL,
    consumer TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (topic, consumer)
) STRICT, WITHOUT ROWID;
CREATE TABLE store_clock (one INTEGER PRIMARY KEY CHECK (one = 1), ms INTEGER NOT NULL) STRICT;
-- version: 2
-- Jobs that 0.1.0 settled get the offset of their response, which it did not keep. Here and not among the steps of the
-- jobs: a new store makes those tables before it makes this one.
UPDATE jobs SET response = told.response FROM (
    SELECT q.queue_id AS queue_id, r.job_id AS job_id, max(r.id) AS response FROM (
        SELECT e.id, e.payload ->> '$.queue' AS queue, e.payload ->> '$.job_event_id' AS job_id
        FROM topics t JOIN (
            SELECT topic_id, id, CASE WHEN json_valid(CAST(payload AS TEXT)) THEN CAST(payload AS TEXT) END AS payload
            FROM events WHERE kind = 'job_response'
        ) e ON e.topic_id = t.topic_id WHERE t.name LIKE 'worker.%.responses'
    ) r JOIN queues q ON q.name = r.queue GROUP BY q.queue_id, r.job_id
) AS told WHERE jobs.queue_id = told.queue_id AND jobs.id = told.job_id AND jobs.response IS NULL;
