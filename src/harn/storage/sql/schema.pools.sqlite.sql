-- version: 1
CREATE TABLE pools (
    queue_id INTEGER PRIMARY KEY,
    settings TEXT NOT NULL
) STRICT;
-- version: 2
-- Requests to cancel a running task. Earlier versions wrote the records without these rows.
CREATE TABLE pool_cancels (
    queue_id INTEGER NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (queue_id, job_id)
) STRICT, WITHOUT ROWID;
INSERT OR IGNORE INTO pool_cancels (queue_id, job_id)
SELECT q.queue_id, r.payload ->> '$.job_event_id' FROM (
    SELECT seq, CAST(payload AS TEXT) AS payload, CAST(headers AS TEXT) AS headers FROM events
    WHERE kind = 'job_cancel_asked' AND json_valid(CAST(payload AS TEXT)) AND json_valid(CAST(headers AS TEXT))
) r JOIN queues q ON q.name = r.headers ->> '$.queue'
JOIN jobs j ON j.queue_id = q.queue_id AND j.id = r.payload ->> '$.job_event_id' ORDER BY r.seq;
