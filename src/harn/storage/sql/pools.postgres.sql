-- fragment: is_runnable(functions, looked)
-- Tell whether a task can run: a closure, or a call of one of these functions (a JSON list; null is every
-- function), or a call that is newer than the look at what living processes can run.
({functions}::text IS NULL OR function IS NULL OR function IN (SELECT json_array_elements_text({functions}::json)) OR enqueued_at > {looked})

-- name: pool_oldest
-- List queued tasks, the oldest first.
SELECT @pool_task(:topic) FROM jobs
WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id > 0 AND @is_runnable(:runnable, :looked) ORDER BY id LIMIT :limit;

-- name: pool_newest
-- List queued tasks, the newest first.
SELECT @pool_task(:topic) FROM jobs
WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id > 0 AND @is_runnable(:runnable, :looked) ORDER BY id DESC LIMIT :limit;

-- name: pool_of_key
-- List queued tasks of a key, the oldest first.
SELECT @pool_task(:topic) FROM jobs
WHERE queue_id = :queue_id AND key = :key AND priority = 1 AND state = 0 AND @is_runnable(:runnable, :looked) ORDER BY id LIMIT :limit;

-- name: pool_of_keys
-- List queued tasks of some keys, the oldest first.
SELECT t.* FROM json_array_elements_text(:keys::json) AS v(wanted)
CROSS JOIN LATERAL (SELECT @pool_task(:topic) FROM jobs
    WHERE queue_id = :queue_id AND key = v.wanted AND priority = 1 AND state = 0 AND @is_runnable(:runnable, :looked)
    ORDER BY id LIMIT :limit) AS t ORDER BY t.id LIMIT :limit;

-- name: pool_queued
-- List every queued task of a pool, whose queue is bounded, with its key.
SELECT id, key FROM jobs WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id > 0 ORDER BY id;

-- name: pool_blocked
-- List the submits that wait for a place, in the order of their arrival.
SELECT id FROM jobs WHERE queue_id = :queue_id AND state = -1 AND state NOT IN (0, 2, 3) ORDER BY id LIMIT :limit;

-- name: pool_running
-- List the running tasks of a pool, with the lease that each hangs on.
SELECT id, lease FROM jobs WHERE queue_id = :queue_id AND state IN (2, 3) ORDER BY wake_at;

-- name: pool_closures_of
-- List tasks that a process has submitted and that have not begun: its closures, and all that wait for a place.
SELECT id FROM (
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id > 0
        AND function IS NULL AND trigger_id = :lease ORDER BY id LIMIT :limit) AS closures
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND state = -1 AND state NOT IN (0, 2, 3)
        AND trigger_id = :lease ORDER BY id LIMIT :limit) AS blocked
) AS found ORDER BY id LIMIT :limit;

-- name: asked_cancels
-- Find which of some tasks are to be cancelled.
SELECT c.job_id FROM json_array_elements_text(:ids::json) AS v(id)
CROSS JOIN LATERAL (SELECT job_id FROM pool_cancels WHERE queue_id = :queue_id AND job_id = v.id::bigint LIMIT 1) AS c;

-- name: insert_cancels
-- Enter requests to cancel running tasks.
INSERT INTO pool_cancels (queue_id, job_id)
SELECT * FROM unnest(:queue_id::bigint[], :job_id::bigint[]);

-- name: restore_pools
-- Fill the index of pools.
INSERT INTO pools (queue_id, settings) SELECT * FROM unnest(:queue_id::bigint[], :settings::text[]);

-- name: pool_seen
-- Count the queued, running and blocked tasks of a pool, and tell the newest offset of its claims.
SELECT coalesce(sum(ready), 0)::bigint, coalesce(sum(in_flight), 0)::bigint, coalesce(sum(parked), 0)::bigint,
    coalesce((SELECT head FROM topics WHERE name = :claims), 0)
FROM shares WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue);

-- name: pool_turns_seen
-- List shares of a pool that have queued tasks, in the order of their turns.
SELECT @share(shares) FROM shares
WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND turn IS NOT NULL ORDER BY turn, key LIMIT :limit;

-- name: pool_names_seen
-- List shares of a pool that have queued tasks, in the order of their keys.
SELECT @share(shares) FROM shares
WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND ready > 0 ORDER BY key LIMIT :limit;
