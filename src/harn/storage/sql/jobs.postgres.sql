-- fragment: is_named(job)
-- Tell whether a job's function or trigger id is among :triggers (a JSON list).
coalesce(chr(3) || {job}.function, {job}.trigger_id) IN (SELECT json_array_elements_text(:triggers::json))

-- fragment: is_handled(job)
-- Tell whether a claimer can handle a job: one that is named, or any if :triggers is null.
(:triggers::text IS NULL OR @is_named({job}))

-- fragment: oldest_ready(queue_id, key)
-- Return when the oldest ready job of a key was enqueued: one look at the index for each priority.
(SELECT min(h.enqueued_at) FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
        CROSS JOIN LATERAL (SELECT enqueued_at FROM jobs WHERE queue_id = {queue_id} AND key = {key} COLLATE "C"
            AND priority = p.priority AND state = 0 ORDER BY id LIMIT 1) AS h)

-- name: open_queue
-- Read a queue's row, the time, and whether jobs wait in the outbox; the row stays locked until the commit.
SELECT queue_id, :now, dimension, cap, policy, round, last_key, promoted, alarm, ages, deferrals, promotions, paused, handled, trimmed,
    (SELECT settings FROM pools WHERE pools.queue_id = queues.queue_id), charge, hierarchy, EXISTS (SELECT 1 FROM outbox WHERE queue = :queue)
FROM queues WHERE name = :queue FOR UPDATE;

-- name: queues_in_sight
-- List those of some queues in which a key can be served or something will be due, and the time. Each part has a limit, so that it
-- is read by its index, queue by queue.
SELECT q.name, q.alarm, q.paused, coalesce(flat.is_open, tree.is_open, false), :now
FROM jsonb_array_elements_text(:names::jsonb) AS i(name)
CROSS JOIN LATERAL (SELECT * FROM queues WHERE queues.name = i.name COLLATE "C" LIMIT 1) AS q
LEFT JOIN LATERAL (SELECT true AS is_open FROM shares s
    WHERE s.queue_id = q.queue_id AND s.turn IS NOT NULL AND q.hierarchy = '' LIMIT 1) AS flat ON true
LEFT JOIN LATERAL (SELECT true AS is_open FROM share_nodes n
    WHERE n.queue_id = q.queue_id AND n.parent = '' AND n.turn IS NOT NULL AND q.hierarchy <> '' LIMIT 1) AS tree ON true
WHERE q.alarm IS NOT NULL OR flat.is_open OR tree.is_open;

-- name: insert_jobs
-- Write new jobs.
-- types: int8 int8 text int2 int2 int8 int8 int8 text text text text int8
COPY jobs (queue_id, id, key, priority, state, enqueued_at, wake_at, max_attempts, tenant_id, binding_key, trigger_id, function, cost)
FROM STDIN (FORMAT BINARY);

-- name: insert_jobs_few
-- Write a few new jobs, in one round trip with other statements.
INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, wake_at, max_attempts, tenant_id, binding_key, trigger_id, function, cost)
SELECT * FROM unnest(:queue_id::bigint[], :id::bigint[], :key::text[], :priority::smallint[], :state::smallint[],
    :enqueued_at::bigint[], :wake_at::bigint[], :max_attempts::bigint[], :tenant_id::text[], :binding_key::text[], :trigger_id::text[],
    :function::text[], :cost::bigint[]);

-- name: note_triggers
-- Record trigger ids of the jobs of a queue.
INSERT INTO queue_triggers (queue_id, trigger_id) SELECT * FROM unnest(:queue_id::bigint[], :trigger_id::text[])
ON CONFLICT DO NOTHING;

-- name: grow_shares
-- Add new jobs to their shares.
INSERT INTO shares (queue_id, key, ready, scheduled, turn, round, oldest_at, deferred_from, parked)
SELECT v.queue_id, v.key, v.ready, v.scheduled, @first_turn(v.ready, v.round), v.round,
    CASE WHEN v.ready > 0 THEN v.at END, v.deferrals, v.parked
FROM unnest(:queue_id::bigint[], :key::text[], :ready::bigint[], :scheduled::bigint[], :round::bigint[], :at::bigint[],
    :cap::bigint[], :deferrals::bigint[], :parked::bigint[]) AS v(queue_id, key, ready, scheduled, round, at, cap, deferrals, parked)
ON CONFLICT (queue_id, key) DO UPDATE SET @grow_share((SELECT cap FROM queues WHERE queue_id = shares.queue_id), (:at::bigint[])[1]);

-- name: open_shares_and_jobs
-- List the shares that can be served and whose jobs have waited longest. If these are all such shares, list also the
-- first ready jobs of those that are served next.
WITH q AS MATERIALIZED (
    SELECT queue_id, round, last_key FROM queues WHERE name = :queue
), few AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY turn > (SELECT round FROM q), key <= (SELECT last_key FROM q), key) AS place, count(*) OVER () AS many
    FROM (SELECT @share(shares) FROM shares
        WHERE queue_id = (SELECT queue_id FROM q) AND turn IS NOT NULL ORDER BY oldest_at, key LIMIT :limit) AS s
), lanes AS MATERIALIZED (
    SELECT *, CASE WHEN many < :limit AND place <= :wanted THEN
        1 + greatest(1, (:wanted + least(many, :wanted) - 1) / least(many, :wanted)) END AS depth
    FROM few
), present AS MATERIALIZED (
    SELECT p.priority FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
    CROSS JOIN LATERAL (SELECT 1 FROM jobs WHERE queue_id = (SELECT queue_id FROM q) AND priority = p.priority AND state = 0 AND id > 0
        ORDER BY id LIMIT 1) AS first
)
SELECT l.key, l.ready, l.in_flight, l.turn, l.round, l.credit, l.refill, l.oldest_at, l.depth,
    j.priority, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost, j.body
FROM lanes AS l LEFT JOIN LATERAL (
    SELECT h.*, @short_record(:topic, h.id) AS body
    FROM present AS p
    CROSS JOIN LATERAL (SELECT priority, id, enqueued_at, attempts, max_attempts, cost FROM jobs
        WHERE queue_id = (SELECT queue_id FROM q) AND key = l.key COLLATE "C" AND priority = p.priority AND state = 0
        AND @is_handled(jobs)
        ORDER BY id LIMIT coalesce(l.depth, 0)) AS h
) AS j ON true
ORDER BY l.place, j.priority, j.id;

-- name: shares_in_turn
-- List shares that can be served in a round, in the order of their keys, within a range of them.
SELECT @share(shares) FROM shares
WHERE queue_id = :queue_id AND turn = :turn AND key > :after AND key <= :until ORDER BY key LIMIT :limit;

-- name: shares_in_turn_and_jobs
-- List shares that can be served in a round, in a range of keys and in their order, with their first ready jobs.
WITH few AS MATERIALIZED (
    SELECT *, count(*) OVER () AS many
    FROM (SELECT @share(shares) FROM shares
        WHERE queue_id = :queue_id AND turn = :turn AND key > :after AND key <= :until ORDER BY key LIMIT :limit) AS s
), lanes AS MATERIALIZED (
    SELECT *, 1 + greatest(1, (:wanted + many - 1) / many) AS depth FROM few
), present AS MATERIALIZED (
    SELECT p.priority FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
    CROSS JOIN LATERAL (SELECT 1 FROM jobs WHERE queue_id = :queue_id AND priority = p.priority AND state = 0 AND id > 0
        ORDER BY id LIMIT 1) AS first
)
SELECT l.key, l.ready, l.in_flight, l.turn, l.round, l.credit, l.refill, l.oldest_at, l.depth,
    j.priority, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost, j.body
FROM lanes AS l LEFT JOIN LATERAL (
    SELECT h.*, @short_record(:topic, h.id) AS body
    FROM present AS p
    CROSS JOIN LATERAL (SELECT priority, id, enqueued_at, attempts, max_attempts, cost FROM jobs
        WHERE queue_id = :queue_id AND key = l.key COLLATE "C" AND priority = p.priority AND state = 0
        AND @is_handled(jobs)
        ORDER BY id LIMIT l.depth) AS h
) AS j ON true
ORDER BY l.key, j.priority, j.id;

-- name: ready_heads
-- List the first ready jobs of each priority of some keys, with their records if they are short.
SELECT j.key, j.priority, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost,
    @short_record(:topic, j.id)
FROM json_array_elements_text(:keys::json) AS k(key)
CROSS JOIN (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
CROSS JOIN LATERAL (SELECT key, priority, id, enqueued_at, attempts, max_attempts, cost FROM jobs
    WHERE queue_id = :queue_id AND key = k.key COLLATE "C" AND priority = p.priority AND state = 0
    AND @is_handled(jobs)
    ORDER BY id LIMIT :depth) AS j
ORDER BY j.key, j.priority, j.id;

-- name: ready_after
-- List the ready jobs of a key and priority after an id, with their records if they are short.
SELECT id, enqueued_at, attempts, max_attempts, cost,
    @short_record(:topic, jobs.id)
FROM jobs
WHERE queue_id = :queue_id AND key = :key AND priority = :priority AND state = 0 AND id > :after
AND @is_handled(jobs)
ORDER BY id LIMIT :depth;

-- name: queue_heads
-- List the first ready jobs of each priority of a queue, with their records if they are short.
SELECT j.priority, j.id, j.enqueued_at, j.key, j.attempts, j.max_attempts,
    @short_record(:topic, j.id)
FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
CROSS JOIN LATERAL (SELECT priority, id, enqueued_at, key, attempts, max_attempts FROM jobs
    WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND priority = p.priority AND state = 0 AND id > 0
    AND @is_handled(jobs)
    ORDER BY id LIMIT :wanted) AS j;

-- name: open_job_of
-- Find a ready job with one of these trigger ids (a JSON list) whose key can be served.
SELECT j.id FROM jobs j WHERE j.queue_id = :queue_id AND j.state = 0 AND @is_named(j)
AND EXISTS (SELECT 1 FROM shares s WHERE s.queue_id = j.queue_id AND s.key = j.key AND s.turn IS NOT NULL) LIMIT 1;

-- name: claim_jobs
-- Mark jobs as claimed by a consumer.
UPDATE jobs SET state = 2, wake_at = v.wake_at, attempts = jobs.attempts + 1, epoch = jobs.epoch + 1, claim_id = v.claim_id, held = 1,
    consumer = v.consumer, claimed_at = v.claimed_at, claim_round = v.claim_round, lease = v.lease, charged = v.charged
FROM unnest(:queue_id::bigint[], :id::bigint[], :claim_id::text[], :consumer::text[], :wake_at::bigint[], :claimed_at::bigint[],
    :claim_round::bigint[], :lease::text[], :charged::bigint[])
    AS v(queue_id, id, claim_id, consumer, wake_at, claimed_at, claim_round, lease, charged)
WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;

-- name: job_bodies
-- Read the records of some jobs.
SELECT e.id, e.payload FROM json_array_elements_text(:ids::json) AS v(id)
CROSS JOIN LATERAL (SELECT id, payload FROM events WHERE topic_id = (SELECT topic_id FROM topics WHERE name = :topic)
    AND id = v.id::bigint LIMIT 1) AS e;

-- name: serve_shares
-- Update the shares that a claim has served.
UPDATE shares SET ready = ready - v.served, in_flight = in_flight + v.served, selected = selected + v.served,
    promoted = shares.promoted + v.promoted, turn = v.turn, round = v.round, credit = v.credit, refill = v.refill, deferred_from = v.deferrals,
    oldest_at = CASE WHEN v.known = 1 THEN v.oldest_at ELSE @oldest_ready(v.queue_id, v.key) END
FROM unnest(:queue_id::bigint[], :key::text[], :served::bigint[], :promoted::bigint[], :turn::bigint[], :round::bigint[],
    :credit::bigint[], :deferrals::bigint[], :oldest_at::bigint[], :known::bigint[], :refill::bigint[])
    AS v(queue_id, key, served, promoted, turn, round, credit, deferrals, oldest_at, known, refill)
WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";

-- name: shift_shares
-- Move jobs of shares between ready, scheduled, parked and in flight.
UPDATE shares SET
    @reschedule(shares.ready + v.ready, shares.in_flight + v.in_flight, v.cap, v.round, v.deferrals, v.now),
    selected = shares.selected + v.selected,
    idle_at = @idle_since(shares.ready + v.ready, shares.scheduled + v.scheduled, shares.in_flight + v.in_flight,
        shares.parked + v.parked, v.now),
    ready = shares.ready + v.ready, scheduled = shares.scheduled + v.scheduled, in_flight = shares.in_flight + v.in_flight,
    parked = shares.parked + v.parked,
    oldest_at = CASE WHEN v.ready = 0 THEN oldest_at ELSE @oldest_ready(v.queue_id, v.key) END
FROM unnest(:queue_id::bigint[], :key::text[], :ready::bigint[], :scheduled::bigint[], :in_flight::bigint[], :selected::bigint[],
    :round::bigint[], :cap::bigint[], :at::bigint[], :deferrals::bigint[], :parked::bigint[])
    AS v(queue_id, key, ready, scheduled, in_flight, selected, round, cap, now, deferrals, parked)
WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";

-- name: free_shares
-- Change the number of claims of shares; their ready jobs stay as they are.
UPDATE shares SET
    @reschedule(ready, shares.in_flight + v.in_flight, v.cap, v.round, v.deferrals, v.now),
    idle_at = @idle_since(ready, scheduled, shares.in_flight + v.in_flight, parked, v.now),
    in_flight = shares.in_flight + v.in_flight
FROM unnest(:queue_id::bigint[], :key::text[], :in_flight::bigint[], :round::bigint[], :cap::bigint[], :at::bigint[],
    :deferrals::bigint[]) AS v(queue_id, key, in_flight, round, cap, now, deferrals)
WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";

-- name: refund_shares
-- Return the credit of claims that were released in the round in which they were made.
UPDATE shares SET @refund_credit(v.count, v.round)
FROM unnest(:queue_id::bigint[], :key::text[], :count::bigint[], :round::bigint[]) AS v(queue_id, key, count, round)
WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C" AND ready > 0 AND shares.round = v.round;

-- name: correct_shares
-- Add amounts to the credit of shares in a round.
UPDATE shares SET @correct_credit(v.credit, v.round)
FROM (SELECT u.queue_id, u.key, u.round, s.credit + u.amount AS credit
    FROM unnest(:queue_id::bigint[], :key::text[], :amount::bigint[], :round::bigint[]) AS u(queue_id, key, amount, round)
    CROSS JOIN LATERAL (SELECT @accrued(u.round) AS credit FROM shares
        WHERE queue_id = u.queue_id AND key = u.key COLLATE "C" AND refill > 0 LIMIT 1) AS s) AS v
WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";

-- name: jobs_by_id
-- Read the rows of some jobs.
SELECT j.* FROM json_array_elements_text(:ids::json) AS v(id)
CROSS JOIN LATERAL (SELECT @job_row(jobs) FROM jobs WHERE queue_id = :queue_id AND id = v.id::bigint LIMIT 1) AS j;

-- name: places_of
-- List the key and the priority of those of some jobs that are ready.
SELECT j.id, j.key, j.priority FROM json_array_elements_text(:ids::json) AS v(id)
CROSS JOIN LATERAL (SELECT id, key, priority, state FROM jobs WHERE queue_id = :queue_id AND id = v.id::bigint LIMIT 1) AS j
WHERE j.state = 0 ORDER BY j.id;

-- name: due_by_id
-- Read some jobs with the columns of due_jobs.
SELECT j.* FROM json_array_elements_text(:ids::json) AS v(id)
CROSS JOIN LATERAL (SELECT @due_job(jobs)
    FROM jobs WHERE queue_id = :queue_id AND id = v.id::bigint LIMIT 1) AS j;

-- name: work_enter
-- Enter plain jobs in one statement.
SELECT newest, entered_at FROM work_enter_2(:producer::text, :producer_number::bigint, :clock::bigint, :queue::text, :believed::text, :name::text,
    :kind::text, :largest::bigint, :payload::bytea[], :headers::bytea[], :key::text[], :priority::smallint[], :max_attempts::bigint[],
    :tenant_id::text[], :binding_key::text[], :trigger_id::text[], :function::text[], :cost::bigint[], :share::text[], :ready::bigint[],
    :needs::text[]);

-- name: work_enter_one
-- Enter one plain job in one statement.
SELECT newest, entered_at FROM work_enter_one_3(:producer::text, :producer_number::bigint, :clock::bigint, :queue::text, :believed::text, :name::text,
    :kind::text, :payload::bytea, :headers::bytea, :key::text, :priority::smallint, :max_attempts::bigint, :tenant_id::text, :binding_key::text,
    :trigger_id::text, :function::text, :cost::bigint, :need::text);

-- name: work_look
-- Lock a queue's row, ack jobs, and read what a scheduler looks at first.
SELECT * FROM work_look_3(:producer::text, :producer_number::bigint, :clock::bigint, :queue::text, :jobs::text, :claims::text, :responses::text,
    :ids::bigint[], :claim_ids::text[], :look::text, :most::bigint, :wanted::bigint);

-- name: work_apply
-- Write all that a claim has decided.
SELECT work_apply_3(:queue_id::bigint, :at_ms::bigint, :claim_consumer::text, :claim_lease::text, :claim_wake_at::bigint,
    :claim_id::bigint[], :claim_claim_id::text[], :claim_claim_round::bigint[], :claim_charged::bigint[],
    :share_key::text[], :share_served::bigint[], :share_promoted::bigint[], :share_turn::bigint[], :share_round::bigint[],
    :share_credit::bigint[], :share_oldest_at::bigint[], :share_known::bigint[], :share_refill::bigint[], :deferrals::bigint,
    :round::bigint, :last_key::text, :promoted::bigint, :promotions::bigint, :alarm::bigint, :ages::text, :handled::text,
    :acked::bigint, :purged::bigint, :dead::bigint, :responses::bigint, :cancelled::bigint, :expired::bigint, :retried::bigint,
    :topics::text[], :counts::bigint[], :largest::bigint[], :topic::text[], :first::bigint[], :last::bigint[], :back::bigint[],
    :kind::text[], :headers::bytea[], :at::bigint[], :payload::bytea[]);

-- name: ack_held
-- Mark jobs as acked whose claims are still held, and update their shares; return these jobs and the time.
-- Nothing happens while jobs wait in the outbox: they enter first. Nor if the queue's keys are paths: nodes change, too.
-- The sum keeps the planner from the index of jobs in flight, of which it would read all for each job.
WITH q AS MATERIALIZED (
    SELECT queue_id, round, cap, deferrals, :now AS now, (SELECT head FROM topics WHERE name = :responses) AS head
    FROM queues WHERE name = :queue AND hierarchy = '' AND NOT EXISTS (SELECT 1 FROM outbox WHERE queue = :queue)
), held AS MATERIALIZED (
    SELECT q.queue_id, q.now, j.id, coalesce(q.head, 0) + row_number() OVER (ORDER BY h.place) AS response
    FROM q, unnest(:ids::bigint[], :claim_ids::text[]) WITH ORDINALITY AS h(id, claim_id, place)
    CROSS JOIN LATERAL (SELECT id FROM jobs WHERE queue_id = q.queue_id AND id = h.id AND claim_id = h.claim_id COLLATE "C"
        AND state + 0 = 2 AND held = 1 LIMIT 1) AS j
), acked AS (
    UPDATE jobs SET state = 4, wake_at = NULL, held = 0, settled_at = v.now, response = v.response
    FROM held AS v WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id
    RETURNING jobs.id, jobs.key, v.now, v.response
), freed AS (
    UPDATE shares SET
        @reschedule(ready, shares.in_flight - v.count, v.cap, v.round, v.deferrals, v.now),
        idle_at = @idle_since(ready, scheduled, shares.in_flight - v.count, parked, v.now),
        in_flight = shares.in_flight - v.count
    FROM (SELECT q.*, f.key, f.count FROM q, (SELECT key, count(*) AS count FROM acked GROUP BY key) AS f OFFSET 0) AS v
    WHERE shares.queue_id = v.queue_id AND shares.key = v.key
)
SELECT id, key, now FROM acked ORDER BY response;

-- name: held_claims
-- List the keys of some claimed jobs (a JSON object of their claims by job) whose claims are still held, in this order.
SELECT j.key FROM json_each_text(:claims::json) WITH ORDINALITY AS v(id, claim_id, place)
CROSS JOIN LATERAL (SELECT key, claim_id, state, held FROM jobs WHERE queue_id = :queue_id AND id = v.id::bigint LIMIT 1) AS j
WHERE j.claim_id = v.claim_id COLLATE "C" AND j.state = 2 AND j.held = 1 ORDER BY v.place;

-- name: ack_jobs
-- Mark claimed jobs as acked; their responses have consecutive offsets.
-- The queue's id is in the list because the planner, given a constant, may read the whole queue.
UPDATE jobs SET state = 4, wake_at = NULL, held = 0, settled_at = :at, response = v.response
FROM (SELECT :queue_id::bigint AS queue_id, v.id::bigint AS id, :response::bigint + v.place - 1 AS response
    FROM json_array_elements_text(:ids::json) WITH ORDINALITY AS v(id, place) OFFSET 0) AS v
WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;

-- name: settle_jobs
-- Move jobs to another state; a response of 0 removes the last one.
UPDATE jobs SET state = v.state, wake_at = v.wake_at, held = v.held, attempts = v.attempts, settled_at = v.settled_at,
    history = v.history, response = CASE WHEN v.response = 0 THEN NULL ELSE coalesce(v.response, jobs.response) END
FROM unnest(:queue_id::bigint[], :id::bigint[], :state::smallint[], :wake_at::bigint[], :held::smallint[], :attempts::bigint[],
    :settled_at::bigint[], :history::text[], :response::bigint[]) AS v(queue_id, id, state, wake_at, held, attempts, settled_at, history, response)
WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;

-- fragment: steps_as_json(job)
-- Return the steps of a job as a JSON array; null if there are none.
(SELECT json_agg(json_build_array(p.name, p.number, p.started_at, p.duration_ms) ORDER BY p.entry)::text FROM job_steps p
        WHERE p.queue_id = {job}.queue_id AND p.job_id = {job}.id)

-- name: jobs_of
-- Read some jobs of a queue with their records and last responses.
SELECT @stored_job(:now)
FROM json_array_elements_text(:ids::json) AS v(id)
CROSS JOIN LATERAL (SELECT * FROM jobs WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND id = v.id::bigint LIMIT 1) AS j;

-- name: job_of
-- Read one job of a queue the way jobs_of does.
SELECT @stored_job(:now)
FROM jobs j WHERE j.queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND j.id = :id;

-- name: settled_among
-- List those of some jobs that are settled or do not exist, with the responses of acked ones if they are short.
SELECT v.id::bigint, CASE WHEN j.state = 4 THEN @short_record(:responses, j.response) END
FROM json_array_elements_text(:ids::json) AS v(id)
LEFT JOIN LATERAL (SELECT state, response FROM jobs WHERE queue_id = (SELECT queue_id FROM queues WHERE name = :queue) AND id = v.id::bigint LIMIT 1) AS j ON true
WHERE j.state IS NULL OR j.state > 3;

-- name: move_jobs
-- Move jobs between ready and parked.
UPDATE jobs SET state = :to::smallint
FROM (SELECT :queue_id::bigint AS queue_id, v.id::bigint AS id FROM json_array_elements_text(:ids::json) AS v(id) OFFSET 0) AS v
WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;

-- name: rekey_jobs
-- Give jobs another key.
UPDATE jobs SET key = v.key FROM unnest(:queue_id::bigint[], :id::bigint[], :key::text[]) AS v(queue_id, id, key)
WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;

-- name: restore_queues
-- Fill the index of queues.
INSERT INTO queues (queue_id, name, dimension, cap, round, last_key, promoted, promotions, alarm, acked, purged, dead, responses, ages,
    cancelled, paused, expired, retried, handled, trimmed, charge, hierarchy)
SELECT * FROM unnest(:queue_id::bigint[], :name::text[], :dimension::text[], :cap::bigint[], :round::bigint[], :last_key::text[],
    :promoted::bigint[], :promotions::bigint[], :alarm::bigint[], :acked::bigint[], :purged::bigint[], :dead::bigint[],
    :responses::bigint[], :ages::text[], :cancelled::bigint[], :paused::text[],
    :expired::bigint[], :retried::bigint[], :handled::text[], :trimmed::bigint[], :charge::text[], :hierarchy::text[]);

-- name: restore_shares
-- Fill the index of shares.
INSERT INTO shares (queue_id, key, ready, scheduled, in_flight, turn, round, credit, oldest_at, parked, refill)
SELECT * FROM unnest(:queue_id::bigint[], :key::text[], :ready::bigint[], :scheduled::bigint[], :in_flight::bigint[],
    :turn::bigint[], :round::bigint[], :credit::bigint[], :oldest_at::bigint[], :parked::bigint[], :refill::bigint[]);

-- name: restore_jobs
-- Fill the index of jobs.
INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, wake_at, attempts, max_attempts, epoch, claim_id, held,
    consumer, claimed_at, settled_at, tenant_id, binding_key, trigger_id, history, claim_round,
    function, lease, response, cost, charged)
SELECT * FROM unnest(:queue_id::bigint[], :id::bigint[], :key::text[], :priority::smallint[], :state::smallint[],
    :enqueued_at::bigint[], :wake_at::bigint[], :attempts::bigint[], :max_attempts::bigint[], :epoch::bigint[], :claim_id::text[],
    :held::smallint[], :consumer::text[], :claimed_at::bigint[], :settled_at::bigint[], :tenant_id::text[], :binding_key::text[],
    :trigger_id::text[], :history::text[], :claim_round::bigint[], :function::text[], :lease::text[], :response::bigint[], :cost::bigint[], :charged::bigint[]);

-- name: restore_dedupe
-- Fill the index of dedupe keys.
INSERT INTO job_dedupe (queue_id, tenant_id, dedupe_key, job_id)
SELECT * FROM unnest(:queue_id::bigint[], :tenant_id::text[], :dedupe_key::text[], :job_id::bigint[]);

-- name: restore_triggers
-- Fill the index of trigger ids.
INSERT INTO queue_triggers (queue_id, trigger_id) SELECT * FROM unnest(:queue_id::bigint[], :trigger_id::text[]);

-- name: oldest_waiting
-- Tell when the oldest ready job of each priority was enqueued, and the oldest parked one.
SELECT (SELECT enqueued_at FROM jobs WHERE queue_id = :queue_id AND state = 0 AND id > 0 AND priority = 0 ORDER BY id LIMIT 1),
       (SELECT enqueued_at FROM jobs WHERE queue_id = :queue_id AND state = 0 AND id > 0 AND priority = 1 ORDER BY id LIMIT 1),
       (SELECT enqueued_at FROM jobs WHERE queue_id = :queue_id AND state = 0 AND id > 0 AND priority = 2 ORDER BY id LIMIT 1),
       (SELECT enqueued_at FROM jobs WHERE queue_id = :queue_id AND state = -1 AND state NOT IN (0, 2, 3) ORDER BY id LIMIT 1);

-- name: in_flight_by_lease
-- Count the jobs in flight of each lease.
SELECT lease, count(*) FROM jobs WHERE queue_id = :queue_id AND state IN (2, 3) AND lease IS NOT NULL GROUP BY lease;

-- name: claims_of_lease
-- List the jobs in flight that were claimed under a lease, the way due_jobs does.
SELECT @due_job(jobs) FROM jobs
WHERE queue_id = :queue_id AND state IN (2, 3) AND held = 1 AND lease = :lease ORDER BY wake_at LIMIT :limit;

-- name: page_of_ready
-- List ready jobs of a priority after an id; of a tenant, unless it is null.
SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = :priority AND state = 0 AND id > 0 AND id > :after
AND (CAST(:tenant_id AS TEXT) IS NULL OR tenant_id = :tenant_id) ORDER BY id LIMIT :limit;

-- name: page_in_flight
-- List jobs in flight after an id; of a tenant, unless it is null.
-- The sum keeps the planner from the primary key, by which it would read every settled job.
SELECT id FROM jobs WHERE queue_id = :queue_id AND state IN (2, 3) AND id + 0 > :after
AND (CAST(:tenant_id AS TEXT) IS NULL OR tenant_id = :tenant_id) ORDER BY id + 0 LIMIT :limit;

-- name: page_of_state
-- List jobs of another state after an id.
SELECT id FROM jobs WHERE queue_id = :queue_id AND state = :state AND state NOT IN (0, 2, 3) AND id > :after
ORDER BY id LIMIT :limit;

-- name: page_of_tenant
-- List jobs of a tenant and another state after an id.
SELECT id FROM jobs WHERE queue_id = :queue_id AND tenant_id = :tenant_id AND tenant_id IS NOT NULL AND state = :state
AND state NOT IN (0, 2, 3) AND id > :after ORDER BY id LIMIT :limit;

-- name: jobs_to_purge
-- List ready, parked and scheduled jobs up to an id, some at a time; those in flight and settled ones are not read.
SELECT id FROM (
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = 0 AND state = 0 AND id > 0 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS high
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id > 0 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS normal
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = 2 AND state = 0 AND id > 0 AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS low
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND state = -1 AND state NOT IN (0, 2, 3) AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS parked
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND state = 1 AND state NOT IN (0, 2, 3) AND id > :after AND id <= :until ORDER BY id LIMIT :limit) AS scheduled
) AS found ORDER BY id LIMIT :limit;

-- name: oldest_unsettled
-- Tell the oldest job below an id that is not settled; settled ones are not read.
SELECT id FROM (
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = 0 AND state = 0 AND id > 0 AND id < :below ORDER BY id LIMIT 1) AS high
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = 1 AND state = 0 AND id > 0 AND id < :below ORDER BY id LIMIT 1) AS normal
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND priority = 2 AND state = 0 AND id > 0 AND id < :below ORDER BY id LIMIT 1) AS low
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND state = -1 AND state NOT IN (0, 2, 3) AND id < :below ORDER BY id LIMIT 1) AS parked
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND state = 1 AND state NOT IN (0, 2, 3) AND id < :below ORDER BY id LIMIT 1) AS scheduled
    UNION ALL
    SELECT * FROM (SELECT id FROM jobs WHERE queue_id = :queue_id AND state IN (2, 3) AND id + 0 < :below ORDER BY id + 0 LIMIT 1) AS in_flight
) AS found ORDER BY id LIMIT 1;

-- name: put_nodes
-- Write nodes of a queue's tree.
INSERT INTO share_nodes (queue_id, key, parent, ready, in_flight, turn, round, credit, refill, idle_at, inner_round)
SELECT * FROM unnest(:queue_id::bigint[], :key::text[], :parent::text[], :ready::bigint[], :in_flight::bigint[], :turn::bigint[],
    :round::bigint[], :credit::bigint[], :refill::bigint[], :idle_at::bigint[], :inner_round::bigint[])
ON CONFLICT (queue_id, key) DO UPDATE SET parent = excluded.parent, ready = excluded.ready, in_flight = excluded.in_flight, turn = excluded.turn,
    round = excluded.round, credit = excluded.credit, refill = excluded.refill, idle_at = excluded.idle_at, inner_round = excluded.inner_round;

-- name: serve_nodes
-- Update the nodes of a queue's tree that a claim has served.
UPDATE share_nodes SET ready = v.ready, in_flight = v.in_flight, turn = v.turn, round = v.round, credit = v.credit, refill = v.refill,
    inner_round = v.inner_round
FROM unnest(:queue_id::bigint[], :key::text[], :ready::bigint[], :in_flight::bigint[], :turn::bigint[], :round::bigint[], :credit::bigint[],
    :refill::bigint[], :inner_round::bigint[]) AS v(queue_id, key, ready, in_flight, turn, round, credit, refill, inner_round)
WHERE share_nodes.queue_id = v.queue_id AND share_nodes.key = v.key COLLATE "C";

-- name: nodes_of
-- Read some nodes of a queue's tree.
SELECT n.* FROM json_array_elements_text(:keys::json) AS v(key)
CROSS JOIN LATERAL (SELECT @node(share_nodes) FROM share_nodes
    WHERE queue_id = :queue_id AND key = v.key COLLATE "C" LIMIT 1) AS n;

-- name: first_children
-- List the first children of some nodes that can be served, so many of each, in the order of their turns.
SELECT n.* FROM json_array_elements_text(:parents::json) AS p(parent)
CROSS JOIN LATERAL (SELECT @node(share_nodes) FROM share_nodes
    WHERE queue_id = :queue_id AND parent = p.parent COLLATE "C" AND turn >= 0 ORDER BY turn, key LIMIT :limit) AS n
ORDER BY n.turn, n.key;

-- name: first_path
-- Follow the first child that can be served from some nodes down to a leaf each.
WITH RECURSIVE down AS (
    SELECT n.* FROM json_array_elements_text(:parents::json) AS p(parent)
    CROSS JOIN LATERAL (SELECT @node(share_nodes) FROM share_nodes
        WHERE queue_id = :queue_id AND parent = p.parent COLLATE "C" AND turn >= 0 ORDER BY turn, key LIMIT 1) AS n
    UNION ALL
    SELECT n.* FROM down AS d
    CROSS JOIN LATERAL (SELECT @node(share_nodes) FROM share_nodes
        WHERE queue_id = :queue_id AND parent = d.key COLLATE "C" AND turn >= 0 ORDER BY turn, key LIMIT 1) AS n
)
SELECT @node(down) FROM down;

-- name: open_job_in_tree
-- Find a ready job with one of these trigger ids (a JSON list) whose leaf and all nodes above it can be served.
SELECT j.id FROM jobs j WHERE j.queue_id = :queue_id AND j.state = 0 AND j.id > 0 AND @is_named(j)
AND @path_is_open(j) LIMIT 1;
