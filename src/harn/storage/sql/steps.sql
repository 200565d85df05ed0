-- name: steps_of_job
-- List the steps of a job in the order they were recorded, with their records.
SELECT p.entry, @record(:topic, p.entry)
FROM job_steps p WHERE p.queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND p.job_id = :job_id
ORDER BY p.entry;

-- name: forget_steps
-- Remove the steps of jobs below an id that are not there any more.
DELETE FROM job_steps WHERE queue_id = :queue_id AND job_id < :below
AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.queue_id = job_steps.queue_id AND j.id = job_steps.job_id);

-- name: clear_steps
-- Empty the index of steps.
DELETE FROM job_steps;

-- name: dump_steps
-- Read all of the index of steps.
SELECT queue_id, job_id, entry, name, number, call, started_at, duration_ms FROM job_steps
ORDER BY queue_id, job_id, entry;
