-- fragment: is_named(job)
-- Tell whether a job's function or trigger id is among :triggers (a JSON list).
coalesce(char(3) || {job}.function, {job}.trigger_id) IN (SELECT value FROM json_each(:triggers))

-- fragment: is_handled(job)
-- Tell whether a claimer can handle a job: one that is named, or any if :triggers is null.
(:triggers IS NULL OR @is_named({job}))

-- fragment: oldest_ready(queue_id, key)
-- Return when the oldest ready job of a key was enqueued: one look at the index for each priority.
(SELECT min(at) FROM (
        SELECT * FROM (SELECT enqueued_at AS at FROM jobs INDEXED BY jobs_of_key WHERE queue_id = {queue_id} AND key = {key} AND priority = 0 AND state = 0 ORDER BY id LIMIT 1)
        UNION ALL SELECT * FROM (SELECT enqueued_at FROM jobs INDEXED BY jobs_of_key WHERE queue_id = {queue_id} AND key = {key} AND priority = 1 AND state = 0 ORDER BY id LIMIT 1)
        UNION ALL SELECT * FROM (SELECT enqueued_at FROM jobs INDEXED BY jobs_of_key WHERE queue_id = {queue_id} AND key = {key} AND priority = 2 AND state = 0 ORDER BY id LIMIT 1)))

-- name: open_queue
-- Read a queue's row, and the time.
SELECT queue_id, :now, dimension, cap, policy, round, last_key, promoted, alarm, ages, deferrals, promotions, paused, handled, trimmed,
    (SELECT settings FROM pools WHERE pools.queue_id = queues.queue_id), charge, hierarchy
FROM queues WHERE name = :queue;

-- name: queues_in_sight
-- List those of some queues in which a key can be served or something will be due, and the time.
SELECT name, alarm, paused, is_open, :now FROM (
    SELECT q.name, q.alarm, q.paused, CASE WHEN q.hierarchy = ''
        THEN EXISTS (SELECT 1 FROM shares s WHERE s.queue_id = q.queue_id AND s.turn IS NOT NULL)
        ELSE EXISTS (SELECT 1 FROM share_nodes n WHERE n.queue_id = q.queue_id AND n.parent = '' AND n.turn IS NOT NULL)
        END AS is_open FROM json_each(:names) i CROSS JOIN queues q ON q.name = i.value)
WHERE is_open OR alarm IS NOT NULL;

-- name: insert_jobs
-- Write new jobs.
INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, wake_at, max_attempts, tenant_id, binding_key, trigger_id, function, cost)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13);

-- name: note_triggers
-- Record trigger ids of the jobs of a queue.
INSERT INTO queue_triggers (queue_id, trigger_id) VALUES (?1, ?2) ON CONFLICT DO NOTHING;

-- name: grow_shares
-- Add new jobs to their shares.
INSERT INTO shares (queue_id, key, ready, scheduled, turn, round, oldest_at, deferred_from, parked)
VALUES (?1, ?2, ?3, ?4, @first_turn(?3, ?5), ?5, CASE WHEN ?3 > 0 THEN ?6 END, ?8, ?9)
ON CONFLICT (queue_id, key) DO UPDATE SET @grow_share(?7, ?6);

-- name: shares_in_turn
-- List shares that can be served in a round, in the order of their keys, within a range of them.
SELECT @share(shares) FROM shares INDEXED BY shares_in_turn
WHERE queue_id = :queue_id AND turn = :turn AND key > :after AND key <= :until ORDER BY key LIMIT :limit;

-- name: ready_priorities
-- List the priorities that have a ready job.
SELECT 0 WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 0 AND state = 0)
UNION ALL
SELECT 1 WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 1 AND state = 0)
UNION ALL
SELECT 2 WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 2 AND state = 0);

-- name: ready_after
-- List the ready jobs of a key and priority after an id, with their records if they are short.
SELECT id, enqueued_at, attempts, max_attempts, cost, @short_record(:topic, jobs.id)
FROM jobs INDEXED BY jobs_of_key
WHERE queue_id = :queue_id AND key = :key AND priority = :priority AND state = 0 AND id > :after
AND @is_handled(jobs)
ORDER BY id LIMIT :depth;

-- name: queue_heads
-- List the first ready jobs of each priority of a queue, with their records if they are short.
SELECT *, @short_record(:topic, heads.id)
FROM (
    SELECT * FROM (SELECT priority, id, enqueued_at, key, attempts, max_attempts FROM jobs INDEXED BY jobs_ready
        WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND priority = 0 AND state = 0
        AND @is_handled(jobs) ORDER BY id LIMIT :wanted)
    UNION ALL
    SELECT * FROM (SELECT priority, id, enqueued_at, key, attempts, max_attempts FROM jobs INDEXED BY jobs_ready
        WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND priority = 1 AND state = 0
        AND @is_handled(jobs) ORDER BY id LIMIT :wanted)
    UNION ALL
    SELECT * FROM (SELECT priority, id, enqueued_at, key, attempts, max_attempts FROM jobs INDEXED BY jobs_ready
        WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND priority = 2 AND state = 0
        AND @is_handled(jobs) ORDER BY id LIMIT :wanted)
) AS heads;

-- name: open_job_of
-- Find a ready job with one of these trigger ids (a JSON list) whose key can be served.
SELECT j.id FROM jobs j INDEXED BY jobs_ready WHERE j.queue_id = :queue_id AND j.state = 0 AND @is_named(j)
AND EXISTS (SELECT 1 FROM shares s WHERE s.queue_id = j.queue_id AND s.key = j.key AND s.turn IS NOT NULL) LIMIT 1;

-- name: claim_jobs
-- Mark jobs as claimed by a consumer.
UPDATE jobs SET state = 2, wake_at = ?5, attempts = attempts + 1, epoch = epoch + 1, claim_id = ?3, held = 1,
    consumer = ?4, claimed_at = ?6, claim_round = ?7, lease = ?8, charged = ?9
WHERE queue_id = ?1 AND id = ?2;

-- name: job_bodies
-- Read the records of some jobs.
SELECT e.id, e.payload FROM json_each(:ids) i
CROSS JOIN events e ON e.topic_id = (SELECT topic_id FROM topics WHERE name = :topic) AND e.id = i.value;

-- name: serve_shares
-- Update the shares that a claim has served.
UPDATE shares SET ready = ready - ?3, in_flight = in_flight + ?3, selected = selected + ?3, promoted = promoted + ?4,
    turn = ?5, round = ?6, credit = ?7, refill = ?11, deferred_from = ?8,
    oldest_at = CASE WHEN ?10 THEN ?9 ELSE @oldest_ready(?1, ?2) END
WHERE queue_id = ?1 AND key = ?2;

-- name: shift_shares
-- Move jobs of shares between ready, scheduled, parked and in flight.
UPDATE shares SET
    @reschedule(ready + ?3, in_flight + ?5, ?8, ?7, ?10, ?9),
    selected = selected + ?6,
    idle_at = @idle_since(ready + ?3, scheduled + ?4, in_flight + ?5, parked + ?11, ?9),
    ready = ready + ?3, scheduled = scheduled + ?4, in_flight = in_flight + ?5, parked = parked + ?11,
    oldest_at = CASE WHEN ?3 = 0 THEN oldest_at ELSE @oldest_ready(?1, ?2) END
WHERE queue_id = ?1 AND key = ?2;

-- name: free_shares
-- Change the number of claims of shares; their ready jobs stay as they are.
UPDATE shares SET
    @reschedule(ready, in_flight + ?3, ?5, ?4, ?7, ?6),
    idle_at = @idle_since(ready, scheduled, in_flight + ?3, parked, ?6),
    in_flight = in_flight + ?3
WHERE queue_id = ?1 AND key = ?2;

-- name: refund_shares
-- Return the credit of claims that were released in the round in which they were made.
UPDATE shares SET @refund_credit(?3, ?4)
WHERE queue_id = ?1 AND key = ?2 AND ready > 0 AND round = ?4;

-- name: correct_shares
-- Add amounts to the credit of shares in a round.
UPDATE shares SET @correct_credit(v.credit, ?4)
FROM (SELECT @accrued(?4) + ?3 AS credit FROM shares WHERE queue_id = ?1 AND key = ?2 AND refill > 0) AS v
WHERE queue_id = ?1 AND key = ?2;

-- name: jobs_by_id
-- Read the rows of some jobs.
SELECT @job_row(j)
FROM json_each(:ids) i CROSS JOIN jobs j ON j.queue_id = :queue_id AND j.id = i.value;

-- name: places_of
-- List the key and the priority of those of some jobs that are ready.
SELECT j.id, j.key, j.priority
FROM json_each(:ids) i CROSS JOIN jobs j ON j.queue_id = :queue_id AND j.id = i.value WHERE j.state = 0 ORDER BY j.id;

-- name: due_by_id
-- Read some jobs with the columns of due_jobs.
SELECT @due_job(j)
FROM json_each(:ids) i CROSS JOIN jobs j ON j.queue_id = :queue_id AND j.id = i.value;

-- name: held_claims
-- List the keys of some claimed jobs (a JSON object of their claims by job) whose claims are still held, in this order.
SELECT j.key FROM json_each(:claims) i CROSS JOIN jobs j ON j.queue_id = :queue_id AND j.id = CAST(i.key AS INTEGER)
WHERE j.claim_id = i.value AND j.state = 2 AND j.held = 1;

-- name: ack_jobs
-- Mark claimed jobs as acked; their responses have consecutive offsets.
-- The queue's id depends on the list because the planner, given a constant, may read the whole queue.
UPDATE jobs SET state = 4, wake_at = NULL, held = 0, settled_at = :at, response = :response + i.key
FROM json_each(:ids) AS i WHERE jobs.queue_id = :queue_id + 0 * i.key AND jobs.id = i.value;

-- name: settle_jobs
-- Move jobs to another state; a response of 0 removes the last one.
UPDATE jobs SET state = ?3, wake_at = ?4, held = ?5, attempts = ?6, settled_at = ?7, history = ?8,
    response = CASE WHEN ?9 = 0 THEN NULL ELSE coalesce(?9, response) END
WHERE queue_id = ?1 AND id = ?2;

-- fragment: steps_as_json(job)
-- Return the steps of a job as a JSON array; null if there are none.
(SELECT json_group_array(json_array(p.name, p.number, p.started_at, p.duration_ms)) FROM job_steps p
        WHERE p.queue_id = {job}.queue_id AND p.job_id = {job}.id HAVING count(*) > 0)

-- name: jobs_of
-- Read some jobs of a queue with their records and last responses.
SELECT @stored_job(:now)
FROM json_each(:ids) i CROSS JOIN jobs j
ON j.queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND j.id = i.value;

-- name: job_of
-- Read one job of a queue the way jobs_of does. The time is not read: few jobs need it.
SELECT @stored_job(NULL)
FROM jobs j WHERE j.queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND j.id = :id;

-- name: settled_among
-- List those of some jobs that are settled or do not exist, with the responses of acked ones if they are short.
SELECT i.value, CASE WHEN j.state = 4 THEN @short_record(:responses, j.response) END
FROM json_each(:ids) i LEFT JOIN jobs j
ON j.queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND j.id = i.value
WHERE j.state IS NULL OR j.state > 3;

-- name: move_jobs
-- Move jobs between ready and parked.
UPDATE jobs SET state = :to WHERE queue_id = :queue_id AND id IN (SELECT value FROM json_each(:ids));

-- name: rekey_jobs
-- Give jobs another key.
UPDATE jobs SET key = ?3 WHERE queue_id = ?1 AND id = ?2;

-- name: restore_queues
-- Fill the index of queues.
INSERT INTO queues (queue_id, name, dimension, cap, round, last_key, promoted, promotions, alarm, acked, purged, dead, responses, ages,
    cancelled, paused, expired, retried, handled, trimmed, charge, hierarchy)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22);

-- name: restore_shares
-- Fill the index of shares.
INSERT INTO shares (queue_id, key, ready, scheduled, in_flight, turn, round, credit, oldest_at, parked, refill)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11);

-- name: restore_jobs
-- Fill the index of jobs.
INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, wake_at, attempts, max_attempts, epoch, claim_id, held,
    consumer, claimed_at, settled_at, tenant_id, binding_key, trigger_id, history, claim_round,
    function, lease, response, cost, charged)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?25);

-- name: restore_dedupe
-- Fill the index of dedupe keys.
INSERT INTO job_dedupe (queue_id, tenant_id, dedupe_key, job_id) VALUES (?1, ?2, ?3, ?4);

-- name: restore_triggers
-- Fill the index of trigger ids.
INSERT INTO queue_triggers (queue_id, trigger_id) VALUES (?1, ?2);

-- name: oldest_waiting
-- Tell when the oldest ready job of each priority was enqueued, and the oldest parked one.
SELECT (SELECT enqueued_at FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND state = 0 AND priority = 0 ORDER BY id LIMIT 1),
       (SELECT enqueued_at FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND state = 0 AND priority = 1 ORDER BY id LIMIT 1),
       (SELECT enqueued_at FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND state = 0 AND priority = 2 ORDER BY id LIMIT 1),
       (SELECT enqueued_at FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = -1 AND state <> 0 AND state <> 2 AND state <> 3 ORDER BY id LIMIT 1);

-- name: in_flight_by_lease
-- Count the jobs in flight of each lease.
SELECT lease, count(*) FROM jobs INDEXED BY jobs_in_flight WHERE queue_id = :queue_id AND state IN (2, 3) AND lease IS NOT NULL GROUP BY lease;

-- name: claims_of_lease
-- List the jobs in flight that were claimed under a lease, the way due_jobs does.
SELECT @due_job(jobs) FROM jobs INDEXED BY jobs_in_flight
WHERE queue_id = :queue_id AND state IN (2, 3) AND held = 1 AND lease = :lease ORDER BY wake_at LIMIT :limit;

-- name: page_of_ready
-- List ready jobs of a priority after an id; of a tenant, unless it is null.
-- A second lower bound of the id would be the one that SQLite seeks by: it would read every job before the page.
SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = :priority AND state = 0 AND id > :after
AND (CAST(:tenant_id AS TEXT) IS NULL OR tenant_id = :tenant_id) ORDER BY id LIMIT :limit;

-- name: page_in_flight
-- List jobs in flight after an id; of a tenant, unless it is null.
SELECT id FROM jobs INDEXED BY jobs_in_flight WHERE queue_id = :queue_id AND state IN (2, 3) AND id > :after
AND (CAST(:tenant_id AS TEXT) IS NULL OR tenant_id = :tenant_id) ORDER BY id LIMIT :limit;

-- name: page_of_state
-- List jobs of another state after an id.
SELECT id FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = :state AND state <> 0 AND state <> 2 AND state <> 3 AND id > :after
ORDER BY id LIMIT :limit;

-- name: page_of_tenant
-- List jobs of a tenant and another state after an id.
SELECT id FROM jobs INDEXED BY jobs_by_tenant WHERE queue_id = :queue_id AND tenant_id = :tenant_id AND tenant_id IS NOT NULL AND state = :state
AND state <> 0 AND state <> 2 AND state <> 3 AND id > :after ORDER BY id LIMIT :limit;

-- name: jobs_to_purge
-- List ready, parked and scheduled jobs up to an id, some at a time; those in flight and settled ones are not read.
SELECT id FROM (
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 0 AND state = 0 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS high
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS normal
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 2 AND state = 0 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS low
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = -1 AND state <> 0 AND state <> 2 AND state <> 3 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS parked
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = 1 AND state <> 0 AND state <> 2 AND state <> 3 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS scheduled
) AS found ORDER BY id LIMIT :limit;

-- name: oldest_unsettled
-- Tell the oldest job below an id that is not settled; settled ones are not read.
SELECT id FROM (
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 0 AND state = 0 AND id < :below ORDER BY id LIMIT 1) AS high
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id < :below ORDER BY id LIMIT 1) AS normal
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_ready WHERE queue_id = :queue_id AND priority = 2 AND state = 0 AND id < :below ORDER BY id LIMIT 1) AS low
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = -1 AND state <> 0 AND state <> 2 AND state <> 3 AND id < :below ORDER BY id LIMIT 1) AS parked
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_by_state WHERE queue_id = :queue_id AND state = 1 AND state <> 0 AND state <> 2 AND state <> 3 AND id < :below ORDER BY id LIMIT 1) AS scheduled
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs INDEXED BY jobs_in_flight WHERE queue_id = :queue_id AND state IN (2, 3) AND id < :below ORDER BY id LIMIT 1) AS in_flight
) AS found ORDER BY id LIMIT 1;

-- name: put_nodes
-- Write nodes of a queue's tree.
INSERT INTO share_nodes (queue_id, key, parent, ready, in_flight, turn, round, credit, refill, idle_at, inner_round)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
ON CONFLICT (queue_id, key) DO UPDATE SET parent = excluded.parent, ready = excluded.ready, in_flight = excluded.in_flight, turn = excluded.turn,
    round = excluded.round, credit = excluded.credit, refill = excluded.refill, idle_at = excluded.idle_at, inner_round = excluded.inner_round;

-- name: serve_nodes
-- Update the nodes of a queue's tree that a claim has served.
UPDATE share_nodes SET ready = ?3, in_flight = ?4, turn = ?5, round = ?6, credit = ?7, refill = ?8, inner_round = ?9
WHERE queue_id = ?1 AND key = ?2;

-- name: nodes_of
-- Read some nodes of a queue's tree.
SELECT @node(n)
FROM json_each(:keys) i CROSS JOIN share_nodes n ON n.queue_id = :queue_id AND n.key = i.value;

-- name: first_children
-- List the first children of some nodes that can be served, so many of each, in the order of their turns.
SELECT @node(n)
FROM json_each(:parents) i CROSS JOIN share_nodes n ON n.queue_id = :queue_id AND n.key IN (
    SELECT c.key FROM share_nodes c INDEXED BY share_nodes_in_turn
    WHERE c.queue_id = :queue_id AND c.parent = i.value AND c.turn >= 0 ORDER BY c.turn, c.key LIMIT :limit)
ORDER BY n.turn, n.key;

-- name: first_path
-- Follow the first child that can be served from some nodes down to a leaf each.
WITH RECURSIVE down AS (
    SELECT @node(n)
    FROM json_each(:parents) i CROSS JOIN share_nodes n ON n.queue_id = :queue_id AND n.key = (
        SELECT c.key FROM share_nodes c INDEXED BY share_nodes_in_turn
        WHERE c.queue_id = :queue_id AND c.parent = i.value AND c.turn >= 0 ORDER BY c.turn, c.key LIMIT 1)
    UNION ALL
    SELECT @node(n)
    FROM down CROSS JOIN share_nodes n ON n.queue_id = :queue_id AND n.key = (
        SELECT c.key FROM share_nodes c INDEXED BY share_nodes_in_turn
        WHERE c.queue_id = :queue_id AND c.parent = down.key AND c.turn >= 0 ORDER BY c.turn, c.key LIMIT 1)
)
SELECT @node(down) FROM down;

-- name: ready_of_keys
-- List the first ready jobs of some keys and a priority the way ready_after does, each after its key.
SELECT j.key, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost, @short_record(:topic, j.id)
FROM json_each(:keys) i CROSS JOIN jobs j ON j.queue_id = :queue_id AND j.id IN (
    SELECT id FROM jobs INDEXED BY jobs_of_key
    WHERE queue_id = :queue_id AND key = i.value AND priority = :priority AND state = 0
    AND @is_handled(jobs)
    ORDER BY id LIMIT :depth)
ORDER BY j.id;

-- name: open_job_in_tree
-- Find a ready job with one of these trigger ids (a JSON list) whose leaf and all nodes above it can be served.
SELECT j.id FROM jobs j INDEXED BY jobs_ready WHERE j.queue_id = :queue_id AND j.state = 0 AND @is_named(j)
AND @path_is_open(j) LIMIT 1;
