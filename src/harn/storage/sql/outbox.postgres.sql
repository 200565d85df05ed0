-- name: bind_tickets
-- Let tickets stand for jobs.
INSERT INTO job_tickets (queue_id, ticket, job_id) SELECT * FROM unnest(:queue_id::bigint[], :ticket::text[], :job_id::bigint[])
ON CONFLICT DO NOTHING;

-- name: outbox_waits
-- Tell whether jobs of committed transactions wait for a queue.
SELECT 1 FROM outbox WHERE queue = :queue LIMIT 1;

-- name: outbox_span
-- Find the first and the last commit of which jobs wait for a queue.
SELECT min(place), max(place) FROM outbox_commits WHERE queue = :queue;

-- name: ticket_waits
-- Tell whether the job of a ticket waits in the outbox, committed.
SELECT 1 FROM outbox WHERE ticket = :ticket AND queue = :queue LIMIT 1;

-- name: queues_that_wait
-- List those of some queues for which jobs of committed transactions wait.
SELECT i.name FROM jsonb_array_elements_text(:names::jsonb) AS i(name)
WHERE EXISTS (SELECT 1 FROM outbox) AND EXISTS (SELECT 1 FROM outbox o WHERE o.queue = i.name COLLATE "C");

-- name: queues_in_outbox
-- List the queues for which jobs of committed transactions wait: one probe of the index for each, however many jobs it has.
WITH RECURSIVE waiting AS ((SELECT queue FROM outbox ORDER BY queue LIMIT 1)
    UNION ALL SELECT (SELECT o.queue FROM outbox o WHERE o.queue > w.queue ORDER BY o.queue LIMIT 1) FROM waiting w WHERE w.queue IS NOT NULL)
SELECT queue FROM waiting WHERE queue IS NOT NULL;

-- name: outbox_store
-- Tell which store this is.
SELECT id FROM outbox_store;

-- name: read_outbox
-- List the first jobs that wait for a queue, by the commits of their transactions, so many and roughly so many bytes of them.
SELECT xact, seq, ticket, body, headers, priority, tenant_id, binding_key, trigger_id, dedupe_key, max_attempts, not_before_ms,
    delay_ms, function
FROM (SELECT f.*, sum(octet_length(f.body)) OVER (ORDER BY f.place, f.xact, f.seq) - octet_length(f.body) AS before
    FROM (SELECT o.*, c.place FROM (SELECT * FROM outbox_commits WHERE queue = :queue ORDER BY place LIMIT :limit) AS c
        CROSS JOIN LATERAL (SELECT * FROM outbox WHERE queue = c.queue AND xact = c.xact ORDER BY seq LIMIT :limit) AS o
        ORDER BY c.place, o.xact, o.seq LIMIT :limit) AS f) AS few
WHERE before < :budget ORDER BY place, xact, seq;

-- name: clear_outbox
-- Take jobs out of the outbox that were moved into their queue.
-- The queue is in the list because the planner, given a constant, may read all that waits for it.
DELETE FROM outbox USING (SELECT :queue::text AS queue, v.xact, v.seq FROM unnest(:xacts::text[], :seqs::bigint[]) AS v(xact, seq) OFFSET 0) AS v
WHERE outbox.queue = v.queue COLLATE "C" AND outbox.xact = v.xact COLLATE "C" AND outbox.seq = v.seq;

-- name: clear_commits
-- Forget commits of which nothing waits.
DELETE FROM outbox_commits WHERE queue = :queue AND xact = ANY (:xacts::text[])
AND NOT EXISTS (SELECT 1 FROM outbox WHERE outbox.queue = outbox_commits.queue AND outbox.xact = outbox_commits.xact);

-- name: restore_tickets
-- Fill the index of tickets.
INSERT INTO job_tickets (queue_id, ticket, job_id) SELECT * FROM unnest(:queue_id::bigint[], :ticket::text[], :job_id::bigint[]);

-- name: outbox_add
-- Put a job into the outbox, on a connection that is not ours; the schema, a plain name, is put in.
SELECT "{schema}".outbox_add(:store::text, :queue::text, :body::text, :headers::text, :priority::smallint, :tenant_id::text,
    :binding_key::text, :trigger_id::text, :dedupe_key::text, :max_attempts::bigint, :not_before_ms::bigint, :delay_ms::bigint,
    :function::text);
