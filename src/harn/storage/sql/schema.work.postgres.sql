-- version: 1
-- The functions that carry out the usual operations on a queue, each in one statement. They hold no policy: what is claimed
-- is decided between `work_look_1` and `work_apply_1`, in Python. Their names have a number, because processes of the version
-- before may use the store while this one is rolled out; a change is a new version here, with new names.
-- Enter plain jobs: their records, their rows and their shares, with the producer's number. Returns the offset of the last
-- one and the time, or nulls if the queue is not as the caller believes, and nothing was done.
CREATE FUNCTION work_enter_1(
    producer_name text, number bigint, told_now bigint, queue_name text, believed text, topic text, record_kind text, new_largest bigint,
    payloads bytea[], all_headers bytea[], keys text[], priorities smallint[], most_attempts bigint[], tenants text[], bindings text[],
    triggers text[], functions text[], costs bigint[], share_keys text[], share_counts bigint[], needs text[]
) RETURNS TABLE (newest bigint, entered_at bigint) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    many bigint := cardinality(payloads);
    of_queue bigint;
    this_round bigint;
    this_cap bigint;
    all_deferrals bigint;
    of_topic bigint;
BEGIN
    SELECT q.queue_id, q.round, q.cap, q.deferrals INTO of_queue, this_round, this_cap, all_deferrals
    FROM queues AS q WHERE q.name = queue_name AND q.dimension = believed AND q.paused IS NULL AND q.hierarchy = '' FOR UPDATE;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM outbox WHERE queue = queue_name) OR EXISTS (SELECT 1 FROM pools WHERE queue_id = of_queue) THEN
        RETURN QUERY SELECT NULL::bigint, NULL::bigint;
        RETURN;
    END IF;
    entered_at := coalesce(told_now, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    INSERT INTO topics AS t (name, head, largest) VALUES (topic, many, new_largest)
    ON CONFLICT (name) DO UPDATE SET head = t.head + excluded.head, largest = greatest(t.largest, excluded.largest)
    RETURNING t.topic_id, t.head INTO of_topic, newest;
    INSERT INTO producers AS p (producer, seq, seen_ms, answer) VALUES (producer_name, number, entered_at, ARRAY[newest, entered_at])
    ON CONFLICT (producer) DO UPDATE SET seq = excluded.seq, seen_ms = excluded.seen_ms, answer = excluded.answer
    WHERE p.seq < excluded.seq;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a later attempt has this number' USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
    SELECT of_topic, newest - many + v.n, record_kind, v.payload, v.headers, entered_at
    FROM unnest(payloads, all_headers) WITH ORDINALITY AS v(payload, headers, n);
    INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, max_attempts, tenant_id, binding_key, trigger_id, function, cost)
    SELECT of_queue, newest - many + v.n, v.key, v.priority, 0, entered_at, v.most, v.tenant, v.binding, v.trigger, v.function, v.cost
    FROM unnest(keys, priorities, most_attempts, tenants, bindings, triggers, functions, costs) WITH ORDINALITY
        AS v(key, priority, most, tenant, binding, trigger, function, cost, n);
    INSERT INTO shares (queue_id, key, ready, turn, round, oldest_at, deferred_from)
    SELECT of_queue, v.key, v.ready, @first_turn(v.ready, this_round), this_round, entered_at, all_deferrals
    FROM unnest(share_keys, share_counts) AS v(key, ready)
    ON CONFLICT (queue_id, key) DO UPDATE SET @grow_share(this_cap, entered_at);
    INSERT INTO queue_triggers (queue_id, trigger_id) SELECT of_queue, v.need FROM unnest(needs) AS v(need)
    ON CONFLICT DO NOTHING;
    RETURN NEXT;
END
$body$;
-- Take the producer's number, lock the queue's row, ack the jobs whose claims are still held, and read the shares and jobs
-- that a scheduler looks at first. The first row is about the queue; there is no row if the number was taken before. Nothing
-- is acked or read while jobs wait in the outbox, which enter first, nor where keys are paths: then nodes change, too.
CREATE FUNCTION work_look_1(
    producer_name text, number bigint, told_now bigint, queue_name text, jobs_topic text, claims_topic text, responses_topic text,
    ack_ids bigint[], ack_claims text[], look text, most bigint, wanted bigint
) RETURNS TABLE (
    about text, key text, ready bigint, in_flight bigint, turn bigint, round bigint, credit bigint, refill bigint, oldest_at bigint, depth bigint,
    priority smallint, id bigint, enqueued_at bigint, attempts bigint, max_attempts bigint, cost bigint, body bytea
) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    q queues%ROWTYPE;
    settings_of_pool text;
    is_waiting boolean;
    claimed_up_to bigint;
    answered_up_to bigint;
    acked bigint[];
    acked_keys text[];
    can_look boolean;
    of_jobs bigint;
    this_time bigint := coalesce(told_now, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
BEGIN
    IF number IS NOT NULL THEN
        INSERT INTO producers AS p (producer, seq, seen_ms) VALUES (producer_name, number, this_time)
        ON CONFLICT (producer) DO UPDATE SET seq = excluded.seq, seen_ms = excluded.seen_ms, answer = NULL
        WHERE p.seq < excluded.seq;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT * INTO q FROM queues WHERE name = queue_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;
    this_time := coalesce(told_now, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    SELECT (SELECT settings FROM pools WHERE queue_id = q.queue_id), EXISTS (SELECT 1 FROM outbox WHERE queue = queue_name),
        coalesce((SELECT head FROM topics WHERE name = claims_topic), 0),
        coalesce((SELECT head FROM topics WHERE name = responses_topic), 0), (SELECT topic_id FROM topics WHERE name = jobs_topic)
    INTO settings_of_pool, is_waiting, claimed_up_to, answered_up_to, of_jobs;
    IF NOT is_waiting AND q.hierarchy = '' AND cardinality(ack_ids) > 0 THEN
        -- The sum keeps the planner from the index of jobs in flight, of which it would read all for each job.
        WITH done AS (
            UPDATE jobs SET state = 4, wake_at = NULL, held = 0, settled_at = this_time, response = answered_up_to + h.place
            FROM (SELECT q.queue_id AS queue_id, u.id, u.claim_id, u.place
                FROM unnest(ack_ids, ack_claims) WITH ORDINALITY AS u(id, claim_id, place) OFFSET 0) AS h
            WHERE jobs.queue_id = h.queue_id AND jobs.id = h.id AND jobs.claim_id = h.claim_id COLLATE "C" AND jobs.state + 0 = 2
            AND jobs.held = 1
            RETURNING jobs.id, jobs.key, h.place
        )
        SELECT array_agg(d.id ORDER BY d.place), array_agg(d.key) INTO acked, acked_keys FROM done AS d;
        IF cardinality(acked) < cardinality(ack_ids) THEN  -- the offsets of responses have no gap
            UPDATE jobs SET response = answered_up_to + v.place
            FROM (SELECT q.queue_id AS queue_id, u.id, u.place FROM unnest(acked) WITH ORDINALITY AS u(id, place) OFFSET 0) AS v
            WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;
        END IF;
        UPDATE shares SET
            @reschedule(shares.ready, shares.in_flight - v.count, q.cap, q.round, q.deferrals, this_time),
            idle_at = @idle_since(shares.ready, scheduled, shares.in_flight - v.count, parked, this_time),
            in_flight = shares.in_flight - v.count
        FROM (SELECT q.queue_id AS queue_id, u.key, count(*) AS count FROM unnest(acked_keys) AS u(key) GROUP BY u.key OFFSET 0) AS v
        WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";
    END IF;
    -- Where something comes before the claim, what would be seen here changes.
    can_look := look <> '' AND NOT is_waiting AND q.paused IS NULL AND q.hierarchy = '' AND coalesce(q.alarm > this_time, true)
        AND coalesce(cardinality(acked), 0) = cardinality(ack_ids);
    about := json_build_array(q.queue_id, this_time, q.dimension, q.cap, q.policy, q.round, q.last_key, q.promoted, q.alarm, q.ages,
        q.deferrals, q.promotions, q.paused, q.handled, q.trimmed, settings_of_pool, q.charge, q.hierarchy, is_waiting, claimed_up_to, answered_up_to,
        coalesce(acked, '{}'), can_look)::text;
    RETURN NEXT;
    IF NOT can_look THEN
        RETURN;
    END IF;
    IF look = 'queue_heads' THEN
        RETURN QUERY SELECT NULL::text, j.key, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
            j.priority, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost,
            (SELECT payload FROM events WHERE topic_id = of_jobs AND events.id = j.id AND octet_length(payload) <= 8192)
        FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
        CROSS JOIN LATERAL (SELECT * FROM jobs WHERE queue_id = q.queue_id AND priority = p.priority AND state = 0 AND id > 0
            ORDER BY id LIMIT wanted) AS j;
        RETURN;
    END IF;
    RETURN QUERY SELECT NULL::text, l.key, l.ready, l.in_flight, l.turn, l.round, l.credit, l.refill, l.oldest_at, l.depth,
        j.priority, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost, j.body
    FROM (SELECT s.*, CASE WHEN s.many < most AND s.place <= wanted THEN
            1 + greatest(1, (wanted + least(s.many, wanted) - 1) / least(s.many, wanted)) END AS depth
        FROM (SELECT f.*, row_number() OVER (ORDER BY f.turn > q.round, f.key <= q.last_key, f.key) AS place, count(*) OVER () AS many
            FROM (SELECT key, ready, in_flight, turn, round, credit, refill, oldest_at FROM shares
                WHERE queue_id = q.queue_id AND turn IS NOT NULL ORDER BY oldest_at, key LIMIT most) AS f) AS s) AS l
    LEFT JOIN LATERAL (
        SELECT h.*, (SELECT payload FROM events WHERE topic_id = of_jobs AND events.id = h.id AND octet_length(payload) <= 8192) AS body
        FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
        CROSS JOIN LATERAL (SELECT priority, id, enqueued_at, attempts, max_attempts, cost FROM jobs
            WHERE queue_id = q.queue_id AND key = l.key COLLATE "C" AND priority = p.priority AND state = 0
            ORDER BY id LIMIT coalesce(l.depth, 0)) AS h
    ) AS j ON true
    ORDER BY l.place, j.priority, j.id;
END
$body$;
-- Write what a claim has decided: jobs' claims, the shares that were served, the queue's row, and records of some topics.
CREATE FUNCTION work_apply_1(
    of_queue bigint, this_time bigint, claimer text, lease_of_claimer text, until bigint,
    ids bigint[], claim_ids text[], rounds bigint[], charges bigint[],
    keys text[], served bigint[], more_promoted bigint[], turns bigint[], new_rounds bigint[], credits bigint[], oldest bigint[], known bigint[],
    refills bigint[],
    all_deferrals bigint, new_round bigint, new_last_key text, new_promoted bigint, new_promotions bigint, new_alarm bigint,
    new_ages text, new_handled text, more_acked bigint, more_purged bigint, more_dead bigint, more_responses bigint, more_cancelled bigint,
    more_expired bigint, more_retried bigint,
    topics_grown text[], counts bigint[], largests bigint[],
    record_topics text[], backs bigint[], kinds text[], payloads bytea[], all_headers bytea[], times bigint[]
) RETURNS void LANGUAGE plpgsql AS $body$
#variable_conflict use_column
BEGIN
    IF cardinality(ids) > 0 THEN
        UPDATE jobs SET state = 2, wake_at = until, attempts = jobs.attempts + 1, epoch = jobs.epoch + 1, claim_id = v.claim_id, held = 1,
            consumer = claimer, claimed_at = this_time, claim_round = v.round, lease = lease_of_claimer, charged = v.charged
        FROM (SELECT of_queue AS queue_id, u.* FROM unnest(ids, claim_ids, rounds, charges) AS u(id, claim_id, round, charged) OFFSET 0) AS v
        WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;
    END IF;
    IF cardinality(keys) > 0 THEN
        UPDATE shares SET ready = shares.ready - v.served, in_flight = shares.in_flight + v.served, selected = selected + v.served,
            promoted = shares.promoted + v.promoted, turn = v.turn, round = v.round, credit = v.credit, refill = v.refill,
            deferred_from = all_deferrals,
            oldest_at = CASE WHEN v.known = 1 THEN v.oldest_at ELSE (SELECT min(h.enqueued_at)
                FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
                CROSS JOIN LATERAL (SELECT enqueued_at FROM jobs WHERE queue_id = of_queue AND key = v.key COLLATE "C"
                    AND priority = p.priority AND state = 0 ORDER BY id LIMIT 1) AS h) END
        FROM (SELECT of_queue AS queue_id, u.* FROM unnest(keys, served, more_promoted, turns, new_rounds, credits, oldest, known, refills)
            AS u(key, served, promoted, turn, round, credit, oldest_at, known, refill) OFFSET 0) AS v
        WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";
    END IF;
    UPDATE queues SET round = new_round, last_key = new_last_key, promoted = new_promoted, promotions = new_promotions,
        alarm = new_alarm, ages = new_ages, acked = acked + more_acked, purged = purged + more_purged, dead = dead + more_dead,
        responses = responses + more_responses, cancelled = cancelled + more_cancelled, expired = expired + more_expired,
        retried = retried + more_retried, handled = new_handled
    WHERE queue_id = of_queue;
    WITH t AS (
        INSERT INTO topics (name, head, largest) SELECT * FROM unnest(topics_grown, counts, largests)
        ON CONFLICT (name) DO UPDATE SET head = topics.head + excluded.head, largest = greatest(topics.largest, excluded.largest)
        RETURNING topic_id, name, head
    )
    INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
    SELECT t.topic_id, t.head - v.back, v.kind, v.payload, v.headers, coalesce(v.at, this_time)
    FROM unnest(record_topics, backs, kinds, payloads, all_headers, times) AS v(topic, back, kind, payload, headers, at)
    JOIN t ON t.name = v.topic COLLATE "C";
END
$body$;
-- version: 2
-- Enter plain jobs, as before. Headers, priorities and attempts may have one value for all jobs, and a column of nulls none.
CREATE FUNCTION work_enter_2(
    producer_name text, number bigint, told_now bigint, queue_name text, believed text, topic text, record_kind text, new_largest bigint,
    payloads bytea[], all_headers bytea[], keys text[], priorities smallint[], most_attempts bigint[], tenants text[], bindings text[],
    triggers text[], functions text[], costs bigint[], share_keys text[], share_counts bigint[], needs text[]
) RETURNS TABLE (newest bigint, entered_at bigint) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    many bigint := cardinality(payloads);
    of_queue bigint;
    this_round bigint;
    this_cap bigint;
    all_deferrals bigint;
    of_topic bigint;
BEGIN
    SELECT q.queue_id, q.round, q.cap, q.deferrals INTO of_queue, this_round, this_cap, all_deferrals
    FROM queues AS q WHERE q.name = queue_name AND q.dimension = believed AND q.paused IS NULL AND q.hierarchy = '' FOR UPDATE;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM outbox WHERE queue = queue_name) OR EXISTS (SELECT 1 FROM pools WHERE queue_id = of_queue) THEN
        RETURN QUERY SELECT NULL::bigint, NULL::bigint;
        RETURN;
    END IF;
    entered_at := coalesce(told_now, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    INSERT INTO topics AS t (name, head, largest) VALUES (topic, many, new_largest)
    ON CONFLICT (name) DO UPDATE SET head = t.head + excluded.head, largest = greatest(t.largest, excluded.largest)
    RETURNING t.topic_id, t.head INTO of_topic, newest;
    INSERT INTO producers AS p (producer, seq, seen_ms, answer) VALUES (producer_name, number, entered_at, ARRAY[newest, entered_at])
    ON CONFLICT (producer) DO UPDATE SET seq = excluded.seq, seen_ms = excluded.seen_ms, answer = excluded.answer
    WHERE p.seq < excluded.seq;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a later attempt has this number' USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
    SELECT of_topic, newest - many + v.n, record_kind, v.payload, coalesce(v.headers, all_headers[1]), entered_at
    FROM unnest(payloads, all_headers) WITH ORDINALITY AS v(payload, headers, n);
    INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, max_attempts, tenant_id, binding_key, trigger_id, function, cost)
    SELECT of_queue, newest - many + v.n, v.key, coalesce(v.priority, priorities[1]), 0, entered_at,
        coalesce(v.most, most_attempts[1]), v.tenant, v.binding, v.trigger, v.function, v.cost
    FROM unnest(keys, priorities, most_attempts, tenants, bindings, triggers, functions, costs) WITH ORDINALITY
        AS v(key, priority, most, tenant, binding, trigger, function, cost, n);
    INSERT INTO shares (queue_id, key, ready, turn, round, oldest_at, deferred_from)
    SELECT of_queue, v.key, v.ready, @first_turn(v.ready, this_round), this_round, entered_at, all_deferrals
    FROM unnest(share_keys, share_counts) AS v(key, ready)
    ON CONFLICT (queue_id, key) DO UPDATE SET @grow_share(this_cap, entered_at);
    INSERT INTO queue_triggers (queue_id, trigger_id) SELECT of_queue, v.need FROM unnest(needs) AS v(need)
    ON CONFLICT DO NOTHING;
    RETURN NEXT;
END
$body$;
-- Write what a claim has decided, as before. Records come in runs, whose records differ in nothing but their payloads: a run
-- is from one place to another in the payloads, and its first record is so far back from its topic's newest one.
CREATE FUNCTION work_apply_2(
    of_queue bigint, this_time bigint, claimer text, lease_of_claimer text, until bigint,
    ids bigint[], claim_ids text[], rounds bigint[], charges bigint[],
    keys text[], served bigint[], more_promoted bigint[], turns bigint[], new_rounds bigint[], credits bigint[], oldest bigint[], known bigint[],
    refills bigint[],
    all_deferrals bigint, new_round bigint, new_last_key text, new_promoted bigint, new_promotions bigint, new_alarm bigint,
    new_ages text, new_handled text, more_acked bigint, more_purged bigint, more_dead bigint, more_responses bigint, more_cancelled bigint,
    more_expired bigint, more_retried bigint,
    topics_grown text[], counts bigint[], largests bigint[],
    run_topics text[], firsts bigint[], lasts bigint[], backs bigint[], kinds text[], all_headers bytea[], times bigint[], payloads bytea[]
) RETURNS void LANGUAGE plpgsql AS $body$
#variable_conflict use_column
BEGIN
    IF cardinality(ids) > 0 THEN
        UPDATE jobs SET state = 2, wake_at = until, attempts = jobs.attempts + 1, epoch = jobs.epoch + 1, claim_id = v.claim_id, held = 1,
            consumer = claimer, claimed_at = this_time, claim_round = v.round, lease = lease_of_claimer, charged = v.charged
        FROM (SELECT of_queue AS queue_id, u.* FROM unnest(ids, claim_ids, rounds, charges) AS u(id, claim_id, round, charged) OFFSET 0) AS v
        WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;
    END IF;
    IF cardinality(keys) > 0 THEN
        UPDATE shares SET ready = shares.ready - v.served, in_flight = shares.in_flight + v.served, selected = selected + v.served,
            promoted = shares.promoted + v.promoted, turn = v.turn, round = v.round, credit = v.credit, refill = v.refill,
            deferred_from = all_deferrals,
            oldest_at = CASE WHEN v.known = 1 THEN v.oldest_at ELSE (SELECT min(h.enqueued_at)
                FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
                CROSS JOIN LATERAL (SELECT enqueued_at FROM jobs WHERE queue_id = of_queue AND key = v.key COLLATE "C"
                    AND priority = p.priority AND state = 0 ORDER BY id LIMIT 1) AS h) END
        FROM (SELECT of_queue AS queue_id, u.* FROM unnest(keys, served, more_promoted, turns, new_rounds, credits, oldest, known, refills)
            AS u(key, served, promoted, turn, round, credit, oldest_at, known, refill) OFFSET 0) AS v
        WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";
    END IF;
    UPDATE queues SET round = new_round, last_key = new_last_key, promoted = new_promoted, promotions = new_promotions,
        alarm = new_alarm, ages = new_ages, acked = acked + more_acked, purged = purged + more_purged, dead = dead + more_dead,
        responses = responses + more_responses, cancelled = cancelled + more_cancelled, expired = expired + more_expired,
        retried = retried + more_retried, handled = new_handled
    WHERE queue_id = of_queue;
    WITH t AS (
        INSERT INTO topics (name, head, largest) SELECT * FROM unnest(topics_grown, counts, largests)
        ON CONFLICT (name) DO UPDATE SET head = topics.head + excluded.head, largest = greatest(topics.largest, excluded.largest)
        RETURNING topic_id, name, head
    ), r AS MATERIALIZED (
        SELECT t.topic_id, t.head - v.back - 1 AS before, v.first, v.last, v.kind, v.headers, coalesce(v.at, this_time) AS at
        FROM unnest(run_topics, firsts, lasts, backs, kinds, all_headers, times) AS v(topic, first, last, back, kind, headers, at)
        JOIN t ON t.name = v.topic COLLATE "C"
    )
    INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
    SELECT r.topic_id, r.before + v.n, r.kind, v.payload, r.headers, r.at
    FROM r CROSS JOIN LATERAL unnest(payloads[r.first : r.last]) WITH ORDINALITY AS v(payload, n);
END
$body$;
-- version: 3
-- Enter one plain job, as `work_enter_2` enters many. Without arrays the server takes a seventh less time.
CREATE FUNCTION work_enter_one_3(
    producer_name text, number bigint, told_now bigint, queue_name text, believed text, topic text, record_kind text,
    job_payload bytea, job_headers bytea, job_key text, job_priority smallint, most bigint, tenant text, binding text,
    by_trigger text, by_function text, job_cost bigint, need text
) RETURNS TABLE (newest bigint, entered_at bigint) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    of_queue bigint;
    this_round bigint;
    this_cap bigint;
    all_deferrals bigint;
    of_topic bigint;
BEGIN
    SELECT q.queue_id, q.round, q.cap, q.deferrals INTO of_queue, this_round, this_cap, all_deferrals
    FROM queues AS q WHERE q.name = queue_name AND q.dimension = believed AND q.paused IS NULL AND q.hierarchy = '' FOR UPDATE;
    IF NOT FOUND OR EXISTS (SELECT 1 FROM outbox WHERE queue = queue_name) OR EXISTS (SELECT 1 FROM pools WHERE queue_id = of_queue) THEN
        RETURN QUERY SELECT NULL::bigint, NULL::bigint;
        RETURN;
    END IF;
    entered_at := coalesce(told_now, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    INSERT INTO topics AS t (name, head, largest) VALUES (topic, 1, octet_length(job_payload))
    ON CONFLICT (name) DO UPDATE SET head = t.head + 1, largest = greatest(t.largest, excluded.largest)
    RETURNING t.topic_id, t.head INTO of_topic, newest;
    INSERT INTO producers AS p (producer, seq, seen_ms, answer) VALUES (producer_name, number, entered_at, ARRAY[newest, entered_at])
    ON CONFLICT (producer) DO UPDATE SET seq = excluded.seq, seen_ms = excluded.seen_ms, answer = excluded.answer
    WHERE p.seq < excluded.seq;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a later attempt has this number' USING ERRCODE = 'serialization_failure';
    END IF;
    INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
    VALUES (of_topic, newest, record_kind, job_payload, job_headers, entered_at);
    INSERT INTO jobs (queue_id, id, key, priority, state, enqueued_at, max_attempts, tenant_id, binding_key, trigger_id, function, cost)
    VALUES (of_queue, newest, job_key, job_priority, 0, entered_at, most, tenant, binding, by_trigger, by_function, job_cost);
    INSERT INTO shares (queue_id, key, ready, turn, round, oldest_at, deferred_from)
    VALUES (of_queue, job_key, 1, @first_turn(1, this_round), this_round, entered_at, all_deferrals)
    ON CONFLICT (queue_id, key) DO UPDATE SET @grow_share(this_cap, entered_at);
    INSERT INTO queue_triggers (queue_id, trigger_id) VALUES (of_queue, need) ON CONFLICT DO NOTHING;
    RETURN NEXT;
END
$body$;
-- Open a queue, ack and look, as before; a lone ack takes no join.
CREATE FUNCTION work_look_3(
    producer_name text, number bigint, told_now bigint, queue_name text, jobs_topic text, claims_topic text, responses_topic text,
    ack_ids bigint[], ack_claims text[], look text, most bigint, wanted bigint
) RETURNS TABLE (
    about text, key text, ready bigint, in_flight bigint, turn bigint, round bigint, credit bigint, refill bigint, oldest_at bigint, depth bigint,
    priority smallint, id bigint, enqueued_at bigint, attempts bigint, max_attempts bigint, cost bigint, body bytea
) LANGUAGE plpgsql AS $body$
#variable_conflict use_column
DECLARE
    q queues%ROWTYPE;
    settings_of_pool text;
    is_waiting boolean;
    claimed_up_to bigint;
    answered_up_to bigint;
    acked bigint[];
    acked_keys text[];
    acked_key text;
    can_look boolean;
    of_jobs bigint;
    this_time bigint := coalesce(told_now, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
BEGIN
    IF number IS NOT NULL THEN
        INSERT INTO producers AS p (producer, seq, seen_ms) VALUES (producer_name, number, this_time)
        ON CONFLICT (producer) DO UPDATE SET seq = excluded.seq, seen_ms = excluded.seen_ms, answer = NULL
        WHERE p.seq < excluded.seq;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT * INTO q FROM queues WHERE name = queue_name FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NEXT;
        RETURN;
    END IF;
    this_time := coalesce(told_now, (extract(epoch FROM clock_timestamp()) * 1000)::bigint);
    SELECT (SELECT settings FROM pools WHERE queue_id = q.queue_id), EXISTS (SELECT 1 FROM outbox WHERE queue = queue_name),
        coalesce((SELECT head FROM topics WHERE name = claims_topic), 0),
        coalesce((SELECT head FROM topics WHERE name = responses_topic), 0), (SELECT topic_id FROM topics WHERE name = jobs_topic)
    INTO settings_of_pool, is_waiting, claimed_up_to, answered_up_to, of_jobs;
    IF is_waiting OR q.hierarchy <> '' THEN
        NULL;
    ELSIF cardinality(ack_ids) = 1 THEN
        UPDATE jobs SET state = 4, wake_at = NULL, held = 0, settled_at = this_time, response = answered_up_to + 1
        WHERE queue_id = q.queue_id AND id = ack_ids[1] AND claim_id = ack_claims[1] AND state + 0 = 2 AND held = 1
        RETURNING jobs.key INTO acked_key;
        IF FOUND THEN
            acked := ack_ids;
            UPDATE shares SET
                @reschedule(shares.ready, shares.in_flight - 1, q.cap, q.round, q.deferrals, this_time),
                idle_at = @idle_since(shares.ready, scheduled, shares.in_flight - 1, parked, this_time),
                in_flight = shares.in_flight - 1
            WHERE queue_id = q.queue_id AND key = acked_key;
        END IF;
    ELSIF cardinality(ack_ids) > 1 THEN
        -- The sum keeps the planner from the index of jobs in flight, of which it would read all for each job.
        WITH done AS (
            UPDATE jobs SET state = 4, wake_at = NULL, held = 0, settled_at = this_time, response = answered_up_to + h.place
            FROM (SELECT q.queue_id AS queue_id, u.id, u.claim_id, u.place
                FROM unnest(ack_ids, ack_claims) WITH ORDINALITY AS u(id, claim_id, place) OFFSET 0) AS h
            WHERE jobs.queue_id = h.queue_id AND jobs.id = h.id AND jobs.claim_id = h.claim_id COLLATE "C" AND jobs.state + 0 = 2
            AND jobs.held = 1
            RETURNING jobs.id, jobs.key, h.place
        )
        SELECT array_agg(d.id ORDER BY d.place), array_agg(d.key) INTO acked, acked_keys FROM done AS d;
        IF cardinality(acked) < cardinality(ack_ids) THEN  -- the offsets of responses have no gap
            UPDATE jobs SET response = answered_up_to + v.place
            FROM (SELECT q.queue_id AS queue_id, u.id, u.place FROM unnest(acked) WITH ORDINALITY AS u(id, place) OFFSET 0) AS v
            WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;
        END IF;
        UPDATE shares SET
            @reschedule(shares.ready, shares.in_flight - v.count, q.cap, q.round, q.deferrals, this_time),
            idle_at = @idle_since(shares.ready, scheduled, shares.in_flight - v.count, parked, this_time),
            in_flight = shares.in_flight - v.count
        FROM (SELECT q.queue_id AS queue_id, u.key, count(*) AS count FROM unnest(acked_keys) AS u(key) GROUP BY u.key OFFSET 0) AS v
        WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";
    END IF;
    -- Where something comes before the claim, what would be seen here changes.
    can_look := look <> '' AND NOT is_waiting AND q.paused IS NULL AND q.hierarchy = '' AND coalesce(q.alarm > this_time, true)
        AND coalesce(cardinality(acked), 0) = cardinality(ack_ids);
    about := json_build_array(q.queue_id, this_time, q.dimension, q.cap, q.policy, q.round, q.last_key, q.promoted, q.alarm, q.ages,
        q.deferrals, q.promotions, q.paused, q.handled, q.trimmed, settings_of_pool, q.charge, q.hierarchy, is_waiting, claimed_up_to, answered_up_to,
        coalesce(acked, '{}'), can_look)::text;
    RETURN NEXT;
    IF NOT can_look THEN
        RETURN;
    END IF;
    IF look = 'queue_heads' THEN
        RETURN QUERY SELECT NULL::text, j.key, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint, NULL::bigint,
            j.priority, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost,
            (SELECT payload FROM events WHERE topic_id = of_jobs AND events.id = j.id AND octet_length(payload) <= 8192)
        FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
        CROSS JOIN LATERAL (SELECT * FROM jobs WHERE queue_id = q.queue_id AND priority = p.priority AND state = 0 AND id > 0
            ORDER BY id LIMIT wanted) AS j;
        RETURN;
    END IF;
    RETURN QUERY SELECT NULL::text, l.key, l.ready, l.in_flight, l.turn, l.round, l.credit, l.refill, l.oldest_at, l.depth,
        j.priority, j.id, j.enqueued_at, j.attempts, j.max_attempts, j.cost, j.body
    FROM (SELECT s.*, CASE WHEN s.many < most AND s.place <= wanted THEN
            1 + greatest(1, (wanted + least(s.many, wanted) - 1) / least(s.many, wanted)) END AS depth
        FROM (SELECT f.*, row_number() OVER (ORDER BY f.turn > q.round, f.key <= q.last_key, f.key) AS place, count(*) OVER () AS many
            FROM (SELECT key, ready, in_flight, turn, round, credit, refill, oldest_at FROM shares
                WHERE queue_id = q.queue_id AND turn IS NOT NULL ORDER BY oldest_at, key LIMIT most) AS f) AS s) AS l
    LEFT JOIN LATERAL (
        SELECT h.*, (SELECT payload FROM events WHERE topic_id = of_jobs AND events.id = h.id AND octet_length(payload) <= 8192) AS body
        FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
        CROSS JOIN LATERAL (SELECT priority, id, enqueued_at, attempts, max_attempts, cost FROM jobs
            WHERE queue_id = q.queue_id AND key = l.key COLLATE "C" AND priority = p.priority AND state = 0
            ORDER BY id LIMIT coalesce(l.depth, 0)) AS h
    ) AS j ON true
    ORDER BY l.place, j.priority, j.id;
END
$body$;
-- Write what a claim has decided, as before; a lone job and a lone share take no join.
CREATE FUNCTION work_apply_3(
    of_queue bigint, this_time bigint, claimer text, lease_of_claimer text, until bigint,
    ids bigint[], claim_ids text[], rounds bigint[], charges bigint[],
    keys text[], served bigint[], more_promoted bigint[], turns bigint[], new_rounds bigint[], credits bigint[], oldest bigint[], known bigint[],
    refills bigint[],
    all_deferrals bigint, new_round bigint, new_last_key text, new_promoted bigint, new_promotions bigint, new_alarm bigint,
    new_ages text, new_handled text, more_acked bigint, more_purged bigint, more_dead bigint, more_responses bigint, more_cancelled bigint,
    more_expired bigint, more_retried bigint,
    topics_grown text[], counts bigint[], largests bigint[],
    run_topics text[], firsts bigint[], lasts bigint[], backs bigint[], kinds text[], all_headers bytea[], times bigint[], payloads bytea[]
) RETURNS void LANGUAGE plpgsql AS $body$
#variable_conflict use_column
BEGIN
    IF cardinality(ids) = 1 THEN
        UPDATE jobs SET state = 2, wake_at = until, attempts = attempts + 1, epoch = epoch + 1, claim_id = claim_ids[1], held = 1,
            consumer = claimer, claimed_at = this_time, claim_round = rounds[1], lease = lease_of_claimer, charged = charges[1]
        WHERE queue_id = of_queue AND id = ids[1];
    ELSIF cardinality(ids) > 1 THEN
        UPDATE jobs SET state = 2, wake_at = until, attempts = jobs.attempts + 1, epoch = jobs.epoch + 1, claim_id = v.claim_id, held = 1,
            consumer = claimer, claimed_at = this_time, claim_round = v.round, lease = lease_of_claimer, charged = v.charged
        FROM (SELECT of_queue AS queue_id, u.* FROM unnest(ids, claim_ids, rounds, charges) AS u(id, claim_id, round, charged) OFFSET 0) AS v
        WHERE jobs.queue_id = v.queue_id AND jobs.id = v.id;
    END IF;
    IF cardinality(keys) = 1 THEN
        UPDATE shares SET ready = ready - served[1], in_flight = in_flight + served[1], selected = selected + served[1],
            promoted = promoted + more_promoted[1], turn = turns[1], round = new_rounds[1], credit = credits[1], refill = refills[1],
            deferred_from = all_deferrals,
            oldest_at = CASE WHEN known[1] = 1 THEN oldest[1] ELSE (SELECT min(h.enqueued_at)
                FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
                CROSS JOIN LATERAL (SELECT enqueued_at FROM jobs WHERE queue_id = of_queue AND key = shares.key
                    AND priority = p.priority AND state = 0 ORDER BY id LIMIT 1) AS h) END
        WHERE queue_id = of_queue AND key = keys[1];
    ELSIF cardinality(keys) > 1 THEN
        UPDATE shares SET ready = shares.ready - v.served, in_flight = shares.in_flight + v.served, selected = selected + v.served,
            promoted = shares.promoted + v.promoted, turn = v.turn, round = v.round, credit = v.credit, refill = v.refill,
            deferred_from = all_deferrals,
            oldest_at = CASE WHEN v.known = 1 THEN v.oldest_at ELSE (SELECT min(h.enqueued_at)
                FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS p(priority)
                CROSS JOIN LATERAL (SELECT enqueued_at FROM jobs WHERE queue_id = of_queue AND key = v.key COLLATE "C"
                    AND priority = p.priority AND state = 0 ORDER BY id LIMIT 1) AS h) END
        FROM (SELECT of_queue AS queue_id, u.* FROM unnest(keys, served, more_promoted, turns, new_rounds, credits, oldest, known, refills)
            AS u(key, served, promoted, turn, round, credit, oldest_at, known, refill) OFFSET 0) AS v
        WHERE shares.queue_id = v.queue_id AND shares.key = v.key COLLATE "C";
    END IF;
    UPDATE queues SET round = new_round, last_key = new_last_key, promoted = new_promoted, promotions = new_promotions,
        alarm = new_alarm, ages = new_ages, acked = acked + more_acked, purged = purged + more_purged, dead = dead + more_dead,
        responses = responses + more_responses, cancelled = cancelled + more_cancelled, expired = expired + more_expired,
        retried = retried + more_retried, handled = new_handled
    WHERE queue_id = of_queue;
    WITH t AS (
        INSERT INTO topics (name, head, largest) SELECT * FROM unnest(topics_grown, counts, largests)
        ON CONFLICT (name) DO UPDATE SET head = topics.head + excluded.head, largest = greatest(topics.largest, excluded.largest)
        RETURNING topic_id, name, head
    ), r AS MATERIALIZED (
        SELECT t.topic_id, t.head - v.back - 1 AS before, v.first, v.last, v.kind, v.headers, coalesce(v.at, this_time) AS at
        FROM unnest(run_topics, firsts, lasts, backs, kinds, all_headers, times) AS v(topic, first, last, back, kind, headers, at)
        JOIN t ON t.name = v.topic COLLATE "C"
    )
    INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
    SELECT r.topic_id, r.before + v.n, r.kind, v.payload, r.headers, r.at
    FROM r CROSS JOIN LATERAL unnest(payloads[r.first : r.last]) WITH ORDINALITY AS v(payload, n);
END
$body$;
