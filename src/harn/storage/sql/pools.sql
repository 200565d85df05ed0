-- fragment: pool_task(topic)
-- List what a claim needs of a queued task, with its record if that is short.
id, key, enqueued_at, attempts, max_attempts, function, trigger_id,
    @short_record({topic}, jobs.id)

-- name: set_pool
-- Record the settings of the pool that a queue belongs to.
INSERT INTO pools (queue_id, settings) VALUES (:queue_id, :settings)
ON CONFLICT (queue_id) DO UPDATE SET settings = excluded.settings;

-- name: pool_settings
-- Read the settings of a pool.
SELECT settings FROM pools WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue);

-- name: list_pools
-- List every pool: its queue's number and name, and its settings.
SELECT queues.queue_id, name, settings FROM pools JOIN queues ON queues.queue_id = pools.queue_id ORDER BY name;

-- name: worker_queue_names
-- List every queue that does not belong to a pool.
SELECT name FROM queues WHERE queue_id NOT IN (SELECT queue_id FROM pools) ORDER BY name;

-- name: pool_totals
-- Count the queued, running and blocked tasks of a pool.
SELECT coalesce(sum(ready), 0), coalesce(sum(in_flight), 0), coalesce(sum(parked), 0) FROM shares WHERE queue_id = :queue_id;

-- name: pool_keys_by_name
-- List shares that have queued tasks, in the order of their keys.
SELECT @share(shares) FROM shares
WHERE queue_id = :queue_id AND ready > 0 ORDER BY key LIMIT :limit;

-- name: pool_keys_by_turn
-- List shares that have queued tasks, in the order of their turns.
SELECT @share(shares) FROM shares
WHERE queue_id = :queue_id AND turn IS NOT NULL ORDER BY turn, key LIMIT :limit;

-- name: forget_job
-- Remove a task that was withdrawn.
DELETE FROM jobs WHERE queue_id = :queue_id AND id = :id;

-- name: unbind_job
-- Free the dedupe key of a job.
DELETE FROM job_dedupe WHERE queue_id = :queue_id AND job_id = :id;

-- name: forget_cancels
-- Remove the requests to cancel tasks below an id that are not there any more.
DELETE FROM pool_cancels WHERE queue_id = :queue_id AND job_id < :below
AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.queue_id = pool_cancels.queue_id AND j.id = pool_cancels.job_id);

-- name: clear_cancels
-- Empty the index of requests to cancel.
DELETE FROM pool_cancels;

-- name: dump_cancels
-- Read all of the index of requests to cancel.
SELECT queue_id, job_id FROM pool_cancels ORDER BY queue_id, job_id;

-- name: clear_pools
-- Empty the index of pools.
DELETE FROM pools;

-- name: dump_pools
-- Read all of the index of pools.
SELECT queue_id, settings FROM pools ORDER BY queue_id;
