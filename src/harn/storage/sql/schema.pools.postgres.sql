-- version: 1
CREATE TABLE pools (
    queue_id bigint PRIMARY KEY,
    settings text COLLATE "C" NOT NULL
);
-- version: 2
-- Requests to cancel a running task. Earlier versions wrote the records without these rows. The text is not read as
-- JSON: a damaged record, or one with a zero character, would be an error.
CREATE TABLE pool_cancels (
    queue_id bigint NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (queue_id, job_id)
);
INSERT INTO pool_cancels (queue_id, job_id)
SELECT q.queue_id, r.parts[1]::bigint FROM (
    SELECT seq, regexp_match(encode(payload, 'escape'), '^\{"job_event_id":(\d+),') AS parts,
        regexp_match(encode(headers, 'escape'), '^\{"queue":("(?:[^"]|\\\\")*")') AS headers
    FROM events WHERE kind = 'job_cancel_asked'
) r JOIN queues q ON encode(convert_to(to_json(q.name)::text, 'UTF8'), 'escape') = r.headers[1]
JOIN jobs j ON j.queue_id = q.queue_id AND j.id = r.parts[1]::bigint ORDER BY r.seq
ON CONFLICT DO NOTHING;
