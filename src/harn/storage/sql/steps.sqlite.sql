-- name: insert_steps
-- Enter steps of jobs.
INSERT INTO job_steps (queue_id, job_id, entry, name, number, call, started_at, duration_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8);
