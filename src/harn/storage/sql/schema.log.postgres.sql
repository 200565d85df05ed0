-- version: 1
CREATE TABLE topics (
    topic_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    head bigint NOT NULL,
    largest bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE events (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    topic_id bigint NOT NULL,
    id bigint NOT NULL,
    kind text NOT NULL,
    payload bytea NOT NULL,
    headers bytea NOT NULL,
    occurred_at_ms bigint NOT NULL,
    PRIMARY KEY (topic_id, id)
);
CREATE TABLE cursors (
    topic text COLLATE "C" NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (topic, consumer)
);
CREATE TABLE producers (
    producer text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL,
    seen_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- version: 2
-- Jobs that 0.1.0 settled get the offset of their response, which it did not keep. Here and not among the steps of the
-- jobs: a new store makes those tables before it makes this one. The text is not read as JSON: a damaged record, or one
-- with a zero character, would be an error.
UPDATE jobs SET response = told.response FROM (
    SELECT q.queue_id, r.parts[2]::bigint AS job_id, max(r.id) AS response FROM (
        SELECT e.id, regexp_match(encode(e.payload, 'escape'), '^\{"queue":("(?:[^"]|\\\\")*"),"job_event_id":(\d+),') AS parts
        FROM topics t JOIN events e ON e.topic_id = t.topic_id
        WHERE e.kind = 'job_response' AND t.name LIKE 'worker.%.responses'
    ) r JOIN queues q ON encode(convert_to(to_json(q.name)::text, 'UTF8'), 'escape') = r.parts[1] GROUP BY q.queue_id, r.parts[2]
) AS told WHERE jobs.queue_id = told.queue_id AND jobs.id = told.job_id AND jobs.response IS NULL;
-- version: 3
-- What the producer's last operation answered, if it was carried out in one statement.
ALTER TABLE producers ADD COLUMN answer bigint[];
