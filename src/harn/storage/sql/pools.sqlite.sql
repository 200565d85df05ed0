-- fragment: is_runnable(functions, looked)
-- Tell whether a task can run: a closure, or a call of one of these functions (a JSON list; null is every
-- function), or a call that is newer than the look at what living processes can run.
({functions} IS NULL OR function IS NULL OR function IN (SELECT value FROM json_each({functions})) OR enqueued_at > {looked})

-- name: pool_oldest
-- List queued tasks, the oldest first.
SELECT @pool_task(:topic) FROM jobs INDEXED BY jobs_ready
WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND @is_runnable(:runnable, :looked) ORDER BY id LIMIT :limit;

-- name: pool_newest
-- List queued tasks, the newest first.
SELECT @pool_task(:topic) FROM jobs INDEXED BY jobs_ready
WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND @is_runnable(:runnable, :looked) ORDER BY id DESC LIMIT :limit;

-- name: pool_of_key
-- List queued tasks of a key, the oldest first.
SELECT @pool_task(:topic) FROM jobs INDEXED BY jobs_of_key
WHERE queue_id = :queue_id AND key = :key AND priority = 1 AND state = 0 AND @is_runnable(:runnable, :looked) ORDER BY id LIMIT :limit;

-- name: pool_of_keys
-- List queued tasks of some keys, the oldest first.
SELECT @pool_task(:topic) FROM jobs INDEXED BY jobs_of_key
WHERE queue_id = :queue_id AND key IN (SELECT value FROM json_each(:keys)) AND priority = 1 AND state = 0
AND @is_runnable(:runnable, :looked) ORDER BY id LIMIT :limit;

-- name: pool_queued
-- List every queued task of a pool, whose queue is bounded, with its key.
SELECT id, key FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 1 AND state = 0 ORDER BY id;

-- name: pool_blocked
-- List the submits that wait for a place, in the order of their arrival.
SELECT id FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = -1 AND state <> 0 AND state <> 2 AND state <> 3 ORDER BY id LIMIT :limit;

-- name: pool_running
-- List the running tasks of a pool, with the lease that each hangs on.
SELECT id, lease FROM jobs INDEXED BY jobs_in_flight WHERE queue_id = :queue_id AND state IN (2, 3) ORDER BY wake_at;

-- name: pool_closures_of
-- List tasks that a process has submitted and that have not begun: its closures, and all that wait for a place.
SELECT id FROM (
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 1 AND state = 0
        AND function IS NULL AND trigger_id = :lease ORDER BY id LIMIT :limit) AS closures
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = -1 AND state <> 0 AND state <> 2 AND state <> 3
        AND trigger_id = :lease ORDER BY id LIMIT :limit) AS blocked
) AS found ORDER BY id LIMIT :limit;

-- name: asked_cancels
-- Find which of some tasks are to be cancelled.
SELECT c.job_id FROM json_each(:ids) i CROSS JOIN pool_cancels c ON c.queue_id = :queue_id AND c.job_id = i.value;

-- name: insert_cancels
-- Enter requests to cancel running tasks.
INSERT INTO pool_cancels (queue_id, job_id) VALUES (?1, ?2);

-- name: restore_pools
-- Fill the index of pools.
INSERT INTO pools (queue_id, settings) VALUES (?1, ?2);
