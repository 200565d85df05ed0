-- name: insert_steps
-- Enter steps of jobs.
INSERT INTO job_steps (queue_id, job_id, entry, name, number, call, started_at, duration_ms)
SELECT * FROM unnest(:queue_id::bigint[], :job_id::bigint[], :entry::bigint[], :name::text[], :number::bigint[], :call::text[], :started_at::bigint[], :duration_ms::bigint[]);
