-- fragment: share(of)
-- Return the columns of a share, in the order of the fields of `Share`.
{of}.key, {of}.ready, {of}.in_flight, {of}.turn, {of}.round, {of}.credit, {of}.refill, {of}.oldest_at

-- fragment: node(of)
-- Return the columns of a node, as `read_node` reads them.
{of}.key, {of}.parent, {of}.ready, {of}.in_flight, {of}.turn, {of}.round, {of}.credit, {of}.refill, {of}.idle_at, {of}.inner_round

-- fragment: job_row(of)
-- Return the columns of a job, in the order of the fields of `JobRow`.
{of}.id, {of}.key, {of}.state, {of}.wake_at, {of}.attempts, {of}.max_attempts, {of}.claim_id, {of}.held, {of}.history, {of}.claim_round,
    {of}.tenant_id, {of}.consumer, {of}.charged

-- fragment: due_job(of)
-- Return the columns of a job whose claim ends or whose time has come, as `end_claims` and `wake_jobs` read them.
{of}.id, {of}.key, {of}.state, {of}.attempts, {of}.max_attempts, {of}.held, {of}.claim_id, {of}.consumer, {of}.wake_at, {of}.history,
    {of}.tenant_id

-- fragment: stored_job(now)
-- Return the columns of a job with its steps, its record and its last response, in the order of the fields of `StoredJob`.
j.id, j.key, j.priority, j.state, j.enqueued_at, j.wake_at, j.attempts, j.max_attempts, j.consumer, j.settled_at,
    j.tenant_id, j.binding_key, j.trigger_id, j.function, j.history, j.response, {now}, @steps_as_json(j),
    @record(:jobs, j.id), @record(:responses, j.response)

-- fragment: path_is_open(job)
-- Whether the leaf of a job and every node above it can be served; a path has four names at most.
EXISTS (SELECT 1 FROM share_nodes n
    LEFT JOIN share_nodes one ON one.queue_id = n.queue_id AND one.key = n.parent
    LEFT JOIN share_nodes two ON two.queue_id = n.queue_id AND two.key = one.parent
    LEFT JOIN share_nodes three ON three.queue_id = n.queue_id AND three.key = two.parent
    LEFT JOIN share_nodes four ON four.queue_id = n.queue_id AND four.key = three.parent
    WHERE n.queue_id = {job}.queue_id AND n.key = {job}.key AND n.turn IS NOT NULL
    AND (one.key IS NULL OR one.turn IS NOT NULL) AND (two.key IS NULL OR two.turn IS NOT NULL)
    AND (three.key IS NULL OR three.turn IS NOT NULL) AND (four.key IS NULL OR four.turn IS NOT NULL))

-- fragment: debt(now)
-- Return the debt of a key, less than 0, or 0. A key that has held no job for a minute has none.
CASE WHEN shares.credit < 0 AND (shares.idle_at IS NULL OR shares.idle_at > {now} - 60000) THEN shares.credit ELSE 0 END

-- fragment: accrued(round)
-- Return the credit of a key in a round: each round since its credit was written adds a refill, up to one refill. Rounds
-- do not pay while a key has no turn. The comparison of rounds keeps the product small.
CASE WHEN shares.turn IS NULL OR shares.round >= {round} OR shares.credit >= shares.refill THEN shares.credit
        WHEN {round} - shares.round - 1 > (-shares.credit) / shares.refill THEN shares.refill
        WHEN shares.credit + ({round} - shares.round) * shares.refill > shares.refill THEN shares.refill
        ELSE shares.credit + ({round} - shares.round) * shares.refill END

-- fragment: reschedule(ready, in_flight, cap, round, deferrals, now)
-- Set a key's turn and credit after its share changed to these counts of ready jobs and of claims in flight. A key with
-- nothing ready, or with as many claims as the cap allows, has no turn. A key that gets a turn again has it in this round
-- if it still has credit, otherwise in the next round, or in the one that ends its debt. A key that runs out of ready jobs
-- loses its credit, not its debt. Its deferrals are the claims that passed over it while it had none.
turn = CASE WHEN {ready} <= 0 OR ({cap} > 0 AND {in_flight} >= {cap}) THEN NULL WHEN shares.turn IS NOT NULL THEN shares.turn
            WHEN shares.credit > 0 AND shares.ready > 0 THEN {round}
            WHEN shares.refill > 0 THEN {round} + 1 + (-@debt({now})) / shares.refill ELSE {round} + 1 END,
    round = CASE WHEN shares.turn IS NULL OR (shares.refill > 0 AND ({ready} <= 0 OR ({cap} > 0 AND {in_flight} >= {cap})))
        THEN {round} ELSE shares.round END,
    credit = CASE WHEN {ready} <= 0 AND shares.ready <= 0 THEN shares.credit WHEN shares.ready <= 0 THEN @debt({now})
        WHEN {ready} <= 0 THEN CASE WHEN @accrued({round}) < 0 THEN @accrued({round}) ELSE 0 END
        WHEN {cap} > 0 AND {in_flight} >= {cap} THEN @accrued({round}) ELSE shares.credit END,
    deferred = CASE WHEN shares.turn IS NULL AND shares.ready > 0
        THEN shares.deferred + {deferrals} - shares.deferred_from ELSE shares.deferred END,
    deferred_from = {deferrals}

-- fragment: correct_credit(credit, round)
-- Set the credit of a key in a round, and its turn: this round if it has credit, or the round that ends its debt.
credit = {credit}, round = {round},
    turn = CASE WHEN shares.turn IS NULL THEN NULL WHEN {credit} > 0 THEN {round} ELSE {round} + 1 + (-{credit}) / shares.refill END

-- fragment: idle_since(ready, scheduled, in_flight, parked, now)
-- Return since when a share has held no job; null while it holds one.
CASE WHEN {ready} <= 0 AND {scheduled} <= 0 AND {in_flight} <= 0 AND {parked} <= 0 THEN {now} END

-- fragment: first_turn(ready, round)
-- Return the turn of a new share: the next round, if it has ready jobs.
CASE WHEN {ready} > 0 THEN {round} + 1 END

-- fragment: grow_share(cap, now)
-- Add the new jobs of the row `excluded` to a share. A key that had nothing ready gets a turn in the next round, with
-- full credit, unless it is at its cap; a key with a debt, in the round that ends it. A key that had ready jobs keeps
-- its turn, or stays without one. A key that has held no job for a minute has no debt.
turn = CASE WHEN shares.turn IS NOT NULL THEN shares.turn WHEN shares.ready > 0 OR excluded.ready = 0 THEN NULL
            WHEN {cap} > 0 AND shares.in_flight >= {cap} THEN NULL
            WHEN shares.refill > 0 THEN excluded.round + 1 + (-@debt({now})) / shares.refill ELSE excluded.round + 1 END,
    round = CASE WHEN shares.turn IS NULL AND shares.ready = 0 THEN excluded.round ELSE shares.round END,
    credit = CASE WHEN shares.turn IS NULL AND shares.ready = 0 THEN @debt({now}) ELSE shares.credit END,
    deferred_from = CASE WHEN shares.ready = 0 THEN excluded.deferred_from ELSE shares.deferred_from END,
    oldest_at = CASE WHEN excluded.ready = 0 THEN shares.oldest_at ELSE coalesce(shares.oldest_at, excluded.oldest_at) END,
    ready = shares.ready + excluded.ready, scheduled = shares.scheduled + excluded.scheduled,
    parked = shares.parked + excluded.parked, idle_at = NULL

-- fragment: refund_credit(count, round)
-- Return the credit of claims that were released in the round in which they were made; a turn of the key is moved to
-- this round.
credit = shares.credit + {count}, turn = CASE WHEN shares.turn IS NULL THEN NULL ELSE {round} END

-- fragment: begin_again(round)
-- Take a key's credit away, and let it begin again with the next round.
credit = 0, refill = 0, round = {round}, turn = CASE WHEN shares.turn IS NULL THEN NULL ELSE {round} + 1 END

-- name: open_shares
-- List the shares that can be served and whose jobs have waited longest.
SELECT @share(shares) FROM shares
WHERE queue_id = :queue_id AND turn IS NOT NULL ORDER BY oldest_at, key LIMIT :limit;

-- name: starving_shares
-- List shares that can be served and whose oldest job was enqueued by a time, oldest first.
SELECT @share(shares) FROM shares
WHERE queue_id = :queue_id AND turn IS NOT NULL AND oldest_at <= :before ORDER BY oldest_at, key LIMIT :limit;

-- name: shares_ahead
-- List shares that can be served from a round on, in the order of their turns and keys.
SELECT @share(shares) FROM shares
WHERE queue_id = :queue_id AND turn >= :turn ORDER BY turn, key LIMIT :limit;

-- name: open_keys
-- List some keys that can be served.
SELECT key FROM shares WHERE queue_id = :queue_id AND turn IS NOT NULL LIMIT :limit;

-- name: held_back_keys
-- Find a key that has ready jobs and cannot be served.
SELECT key FROM shares WHERE queue_id = :queue_id AND turn IS NULL AND ready > 0 LIMIT 1;

-- name: add_deferral
-- Count a claim that found every key with ready jobs at its cap.
UPDATE queues SET deferrals = deferrals + 1 WHERE queue_id = :queue_id;

-- name: queue_row
-- Read a queue's row and the time, in the order of the fields of `QueueRow`; no lock is taken.
SELECT queue_id, :now, dimension, cap, policy, round, last_key, promoted, alarm, ages, deferrals, promotions, paused, handled, trimmed,
    acked, purged, dead, responses, other_policy, policy_at, dropped_selected, dropped_deferred, cancelled,
    expired, retried, charge, hierarchy
FROM queues WHERE name = :queue;

-- name: queue_names
-- List every queue.
SELECT name FROM queues ORDER BY name;

-- name: add_queue
-- Add a queue.
INSERT INTO queues (queue_id, name) SELECT coalesce(max(queue_id), 0) + 1, CAST(:queue AS TEXT) FROM queues WHERE true
ON CONFLICT DO NOTHING;

-- name: set_policy
-- Record the policy of the latest claim, and keep the one before it.
UPDATE queues SET other_policy = policy, policy = :policy, policy_at = :now WHERE queue_id = :queue_id;

-- name: set_dimension
-- Record which attribute of a job is its key, and start the rotation again.
UPDATE queues SET dimension = :dimension, last_key = '', promoted = 0 WHERE queue_id = :queue_id;

-- name: set_cap
-- Record how many claims a key may have in flight.
UPDATE queues SET cap = :cap WHERE queue_id = :queue_id;

-- name: set_charge
-- Record what a pick costs: one credit, or the cost of its job.
UPDATE queues SET charge = :charge WHERE queue_id = :queue_id;

-- name: reset_credit
-- Let every key begin again with the next round, after what a pick costs has changed.
UPDATE shares SET @begin_again(:round)
WHERE queue_id = :queue_id;

-- name: apply_cap
-- Decide again which keys can be served, after the cap has changed.
UPDATE shares SET @reschedule(ready, in_flight, :cap, :round, :deferrals, 0)
WHERE queue_id = :queue_id AND (ready > 0 OR in_flight > 0);

-- name: set_paused
-- Record which parts of a queue are paused.
UPDATE queues SET paused = :paused WHERE queue_id = :queue_id;

-- name: page_of_key
-- List ready jobs of a key and priority after an id.
SELECT id FROM jobs WHERE queue_id = :queue_id AND key = :key AND priority = :priority AND state = 0 AND id > :after
ORDER BY id LIMIT :limit;

-- name: page_of_all
-- List jobs of every state after an id.
SELECT id FROM jobs WHERE queue_id = :queue_id AND id > :after ORDER BY id LIMIT :limit;

-- name: note_response
-- Record the offset of the response to a job.
UPDATE jobs SET response = :response WHERE queue_id = :queue_id AND id = :id;

-- name: forget_shares
-- Remove every share of a queue.
DELETE FROM shares WHERE queue_id = :queue_id;

-- name: unsettled_origins
-- List the unsettled jobs of a queue after an id, with the attributes that can be their key.
SELECT id, tenant_id, binding_key, trigger_id FROM jobs
WHERE queue_id = :queue_id AND id > :after AND state < 4 ORDER BY id LIMIT :limit;

-- name: count_shares
-- Count a queue's shares from its jobs.
INSERT INTO shares (queue_id, key, ready, scheduled, in_flight, parked, round, oldest_at)
SELECT queue_id, key, sum(CASE WHEN state = 0 THEN 1 ELSE 0 END), sum(CASE WHEN state = 1 THEN 1 ELSE 0 END),
    sum(CASE WHEN state IN (2, 3) THEN 1 ELSE 0 END), sum(CASE WHEN state = -1 THEN 1 ELSE 0 END), 0,
    min(CASE WHEN state = 0 THEN enqueued_at END)
FROM jobs WHERE queue_id = :queue_id AND state < 4 GROUP BY queue_id, key;

-- name: due_jobs
-- List jobs whose claim has expired or whose time has come.
SELECT @due_job(due) FROM (
    SELECT * FROM (SELECT * FROM jobs WHERE queue_id = :queue_id AND state = 1 AND wake_at <= :until ORDER BY wake_at LIMIT :limit) AS a
    UNION ALL
    SELECT * FROM (SELECT * FROM jobs WHERE queue_id = :queue_id AND state IN (2, 3) AND wake_at <= :until ORDER BY wake_at LIMIT :limit) AS b
) AS due ORDER BY wake_at LIMIT :limit;

-- name: next_due
-- Tell when the next claim expires or the next scheduled job is due.
SELECT min(at) FROM (
    SELECT * FROM (SELECT wake_at AS at FROM jobs WHERE queue_id = :queue_id AND state = 1 ORDER BY wake_at LIMIT 1) AS a
    UNION ALL
    SELECT * FROM (SELECT wake_at FROM jobs WHERE queue_id = :queue_id AND state IN (2, 3) ORDER BY wake_at LIMIT 1) AS b
) AS due;

-- name: save_queue
-- Write the columns of a queue's row that an operation has changed.
UPDATE queues SET round = :round, last_key = :last_key, promoted = :promoted, promotions = :promotions, alarm = :alarm,
    ages = :ages, acked = acked + :acked, purged = purged + :purged, dead = dead + :dead, responses = responses + :responses,
    cancelled = cancelled + :cancelled, expired = expired + :expired, retried = retried + :retried, handled = :handled
WHERE queue_id = :queue_id;

-- name: one_job
-- Read a job's row.
SELECT key, priority, state, enqueued_at, wake_at, attempts, max_attempts, epoch, claim_id, held, consumer,
    claimed_at, settled_at, tenant_id, binding_key, trigger_id, history, function
FROM jobs WHERE queue_id = :queue_id AND id = :id;

-- name: ack_one
-- Mark a job as acked whose claim is still held; return its key.
-- The sum keeps PostgreSQL's planner from the index of jobs in flight, of which it would read all.
UPDATE jobs SET state = 4, wake_at = NULL, held = 0, settled_at = :at, response = :response
WHERE queue_id = :queue_id AND id = :id AND claim_id = :claim_id AND state + 0 = 2 AND held = 1 RETURNING key;

-- name: one_share
-- Read a share's row.
SELECT @share(shares) FROM shares WHERE queue_id = :queue_id AND key = :key;

-- name: find_dedupe
-- Find the job that holds a dedupe key. With a join, PostgreSQL may read a whole queue.
SELECT d.job_id, (SELECT j.settled_at FROM jobs j WHERE j.queue_id = d.queue_id AND j.id = d.job_id),
    (SELECT j.id FROM jobs j WHERE j.queue_id = d.queue_id AND j.id = d.job_id) IS NOT NULL
FROM job_dedupe d WHERE d.queue_id = :queue_id AND d.tenant_id = :tenant_id AND d.dedupe_key = :dedupe_key;

-- name: bind_dedupe
-- Make a job the holder of a dedupe key.
INSERT INTO job_dedupe (queue_id, tenant_id, dedupe_key, job_id) VALUES (:queue_id, :tenant_id, :dedupe_key, :job_id)
ON CONFLICT (queue_id, tenant_id, dedupe_key) DO UPDATE SET job_id = excluded.job_id;

-- name: triggers_seen
-- List the trigger ids and functions that jobs of a queue have named.
SELECT trigger_id FROM queue_triggers WHERE queue_id = :queue_id ORDER BY trigger_id;

-- name: newest_job
-- Tell the newest job of a queue.
SELECT max(id) FROM jobs WHERE queue_id = :queue_id;

-- name: oldest_jobs
-- List the oldest jobs of a queue, with when they were settled.
SELECT id, state, settled_at FROM jobs WHERE queue_id = :queue_id ORDER BY id LIMIT :limit;

-- name: oldest_deduping
-- Find the oldest job below an id that holds a dedupe key and is not settled, or was settled after a time.
SELECT d.job_id FROM job_dedupe d WHERE d.queue_id = :queue_id AND d.job_id < :below
AND (SELECT j.settled_at IS NULL OR j.settled_at > :since FROM jobs j WHERE j.queue_id = d.queue_id AND j.id = d.job_id)
ORDER BY d.job_id LIMIT 1;

-- name: forget_dedupe
-- Remove dedupe keys held by settled jobs below an id.
DELETE FROM job_dedupe WHERE queue_id = :queue_id AND job_id < :below
AND coalesce((SELECT j.state FROM jobs j WHERE j.queue_id = job_dedupe.queue_id AND j.id = job_dedupe.job_id), 4) >= 4;

-- name: forget_jobs
-- Remove settled jobs below an id.
DELETE FROM jobs WHERE queue_id = :queue_id AND id < :below AND state >= 4;

-- name: queue_totals_kept
-- Read what a queue has counted, and the time.
SELECT acked, purged, dead, cancelled, responses, expired, retried, promotions, ages, handled, :now FROM queues
WHERE queue_id = :queue_id;

-- name: set_totals
-- Write what a queue has counted, as of the record at an offset of its claims.
UPDATE queues SET acked = :acked, purged = :purged, dead = :dead, cancelled = :cancelled, responses = :responses,
    expired = :expired, retried = :retried, promotions = :promotions, trimmed = :trimmed
WHERE queue_id = :queue_id;

-- name: note_trimmed
-- Note where a queue's claims tell what it had counted when its jobs were trimmed.
UPDATE queues SET trimmed = :trimmed WHERE queue_id = :queue_id;

-- name: queue_totals
-- Sum a queue's shares.
SELECT coalesce(sum(ready), 0), coalesce(sum(scheduled), 0), coalesce(sum(in_flight), 0), coalesce(sum(parked), 0)
FROM shares WHERE queue_id = :queue_id;

-- name: share_rows
-- List a queue's shares for display, those with jobs first.
SELECT key, ready, scheduled, in_flight, turn, round, credit, refill, oldest_at, selected, promoted, deferred, deferred_from, parked
FROM shares WHERE queue_id = :queue_id ORDER BY (ready + in_flight + scheduled + parked > 0) DESC, key LIMIT :limit;

-- name: drop_idle_shares
-- Delete idle shares, those that have been idle longest first, and keep a number of them, and those whose debt counts.
DELETE FROM shares WHERE queue_id = :queue_id AND key IN (
    SELECT key FROM shares WHERE queue_id = :queue_id AND idle_at IS NOT NULL AND (credit >= 0 OR idle_at <= :now - 60000)
    ORDER BY idle_at DESC LIMIT 1000 OFFSET :keep)
RETURNING selected, deferred;

-- name: keep_dropped
-- Add the counters of deleted shares to their queue.
UPDATE queues SET dropped_selected = dropped_selected + :selected, dropped_deferred = dropped_deferred + :deferred
WHERE queue_id = :queue_id;

-- name: jobs_ahead
-- Count ready jobs of a key and priority before an id, within a bound.
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue_id = :queue_id AND key = :key AND priority = :priority AND state = 0
    AND id < :before LIMIT :limit) AS ahead;

-- name: queue_jobs_ahead
-- Count ready jobs of a priority before an id, within a bound.
SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue_id = :queue_id AND priority = :priority AND state = 0
    AND id > 0 AND id < :before LIMIT :limit) AS ahead;

-- name: clear_queues
-- Empty the index of queues.
DELETE FROM queues;

-- name: clear_shares
-- Empty the index of shares.
DELETE FROM shares;

-- name: clear_jobs
-- Empty the index of jobs.
DELETE FROM jobs;

-- name: clear_dedupe
-- Empty the index of dedupe keys.
DELETE FROM job_dedupe;

-- name: clear_triggers
-- Empty the index of trigger ids.
DELETE FROM queue_triggers;

-- name: dump_queues
-- Read all of the index of queues.
SELECT queue_id, name, dimension, cap, round, last_key, promoted, promotions,
    coalesce((SELECT 0 FROM jobs j WHERE j.queue_id = queues.queue_id AND j.state = 1 LIMIT 1),
        (SELECT 0 FROM jobs j WHERE j.queue_id = queues.queue_id AND j.state IN (2, 3) LIMIT 1)),
    acked, purged, dead, responses, ages, cancelled, paused, expired, retried, handled, trimmed, charge, hierarchy
FROM queues ORDER BY name;

-- name: dump_shares
-- Read the shares that hold jobs. Idle shares hold counters for display only, so they are not compared.
SELECT queue_id, key, ready, scheduled, in_flight, turn, CASE WHEN ready > 0 THEN round ELSE 0 END,
    CASE WHEN ready > 0 OR credit < 0 THEN credit ELSE 0 END, oldest_at, parked, CASE WHEN ready > 0 OR credit < 0 THEN refill ELSE 0 END
FROM shares WHERE ready > 0 OR scheduled > 0 OR in_flight > 0 OR parked > 0 ORDER BY queue_id, key;

-- name: dump_jobs
-- Read all of the index of jobs, without the keys of settled jobs: those are not kept up to date.
SELECT queue_id, id, CASE WHEN state < 4 THEN key ELSE '' END, priority, state, enqueued_at, wake_at, attempts, max_attempts, epoch, claim_id, held, consumer,
    claimed_at, settled_at, tenant_id, binding_key, trigger_id, history, claim_round, function, lease, response, cost, charged
FROM jobs ORDER BY queue_id, id;

-- name: dump_dedupe
-- Read all of the index of dedupe keys.
SELECT queue_id, tenant_id, dedupe_key, job_id FROM job_dedupe ORDER BY queue_id, tenant_id, dedupe_key;

-- name: dump_triggers
-- Read all of the index of trigger ids.
SELECT queue_id, trigger_id FROM queue_triggers ORDER BY queue_id, trigger_id;

-- name: set_hierarchy
-- Record what separates the names in a key that is a path; empty if keys are no paths.
UPDATE queues SET hierarchy = :hierarchy WHERE queue_id = :queue_id;

-- name: forget_nodes
-- Remove the tree of a queue.
DELETE FROM share_nodes WHERE queue_id = :queue_id;

-- name: drop_idle_nodes
-- Remove nodes that have held no job for a minute.
DELETE FROM share_nodes WHERE queue_id = :queue_id AND idle_at <= :now - 60000;

-- name: work_of_shares
-- List the work of a queue's shares.
SELECT key, ready, in_flight FROM shares WHERE queue_id = :queue_id AND (ready > 0 OR in_flight > 0) ORDER BY key;

-- name: children
-- List the children of a node that can be served, after a turn and key, in the order of both.
SELECT @node(share_nodes) FROM share_nodes
WHERE queue_id = :queue_id AND parent = :parent AND turn >= :turn AND (turn > :turn OR key > :after) ORDER BY turn, key LIMIT :limit;

-- name: open_branches
-- List some of the first nodes of a queue's tree that can be served; each has a leaf that can.
SELECT key FROM share_nodes WHERE queue_id = :queue_id AND parent = '' AND turn IS NOT NULL LIMIT :limit;

-- name: node_rows
-- List the nodes of a queue's tree for display, by path.
SELECT @node(share_nodes) FROM share_nodes
WHERE queue_id = :queue_id ORDER BY key LIMIT :limit;

-- name: clear_nodes
-- Empty the index of trees.
DELETE FROM share_nodes;

-- name: dump_nodes
-- Read the nodes that hold jobs.
SELECT queue_id, key, parent, ready, in_flight, turn, round, credit, refill, NULL, inner_round FROM share_nodes
WHERE ready > 0 OR in_flight > 0 ORDER BY queue_id, key;
