-- fragment: short_record(topic, id)
-- Return the payload of a topic's record if it is short; else null.
(SELECT payload FROM events WHERE topic_id = (SELECT topic_id FROM topics WHERE name = {topic})
        AND events.id = {id} AND octet_length(payload) <= 8192)

-- name: take_offsets
-- Take the next offsets of a topic, and add it on first use; its row stays locked until the commit.
INSERT INTO topics (name, head, largest) VALUES (:topic, :count, :largest)
ON CONFLICT (name) DO UPDATE SET head = topics.head + :count, largest = greatest(topics.largest, :largest)
RETURNING topic_id, head, :now;

-- name: insert_events
-- Write records at the offsets taken for them.
-- types: int8 int8 text bytea bytea int8
COPY events (topic_id, id, kind, payload, headers, occurred_at_ms) FROM STDIN (FORMAT BINARY);

-- name: append_events
-- Take offsets of some topics and write their records; `back` is subtracted from a topic's new head.
-- Nothing happens while jobs of a queue wait in the outbox, where its name is given.
WITH t AS (
    INSERT INTO topics (name, head, largest) SELECT * FROM unnest(:topics::text[], :counts::bigint[], :largest::bigint[])
    WHERE NOT EXISTS (SELECT 1 FROM outbox WHERE queue = :unless_waiting::text)
    ON CONFLICT (name) DO UPDATE SET head = topics.head + excluded.head, largest = greatest(topics.largest, excluded.largest)
    RETURNING topic_id, name, head, :now AS at
), e AS (
    INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
    SELECT t.topic_id, t.head - v.back, v.kind, v.payload, v.headers, coalesce(v.at, t.at)
    FROM unnest(:topic::text[], :back::bigint[], :kind::text[], :payload::bytea[], :headers::bytea[], :at::bigint[])
        AS v(topic, back, kind, payload, headers, at)
    JOIN t ON t.name = v.topic
)
SELECT head, at FROM t ORDER BY name;

-- name: set_limits
-- Set timeouts for this session or transaction, and make the planner use indexes whatever its statistics say. A bitmap scan
-- would read the dead entries of an index again and again; a plain one marks them.
SELECT set_config('search_path', :path, :local), set_config('statement_timeout', :statement_ms, :local),
       set_config('lock_timeout', :lock_ms, :local),
       set_config('idle_in_transaction_session_timeout', :idle_ms, :local),
       set_config('plan_cache_mode', 'force_generic_plan', :local), set_config('enable_seqscan', 'off', :local),
       set_config('enable_hashjoin', 'off', :local), set_config('enable_mergejoin', 'off', :local),
       set_config('enable_bitmapscan', 'off', :local), set_config('jit', 'off', :local);

-- name: end_stalled_sessions
-- End sessions of harn that hold locks on tables of the schema and wait for their client; return their server processes.
-- Locks on the outbox hold no one up, and are those of a caller's own transaction. A stream, or an answer that is being sent, is given
-- the time of a statement: the server does not tell when its client sent or read something last.
-- The planner must not end a session before it has looked at its locks, so the choice is made first.
WITH stalled AS MATERIALIZED (
    SELECT a.pid FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.application_name ~ '^harn( - |$)'
      AND a.state = 'active' AND a.wait_event IN ('ClientRead', 'ClientWrite')
      AND a.state_change < clock_timestamp() - make_interval(
          secs => CASE WHEN a.wait_event = 'ClientRead' AND a.query NOT LIKE 'COPY %' THEN :silent_ms::bigint ELSE :statement_ms::bigint END / 1000.0)
      AND EXISTS (
          SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
          WHERE l.pid = a.pid AND l.granted AND l.mode <> 'AccessShareLock' AND c.relnamespace = to_regnamespace(:schema)
            AND c.relkind = 'r' AND c.relname NOT IN ('outbox', 'outbox_commits', 'outbox_store')
      )
)
SELECT pid::bigint FROM stalled WHERE pg_terminate_backend(pid);

-- name: claim_number
-- Record the producer's next number; returns no row if the operation with this number was committed before.
INSERT INTO producers (producer, seq, seen_ms) VALUES (:producer, :seq, :now)
ON CONFLICT (producer) DO UPDATE SET seq = excluded.seq, seen_ms = excluded.seen_ms, answer = NULL
WHERE producers.seq < excluded.seq
RETURNING seq;

-- name: landed_answer
-- Read the answer of the producer's last operation, if it was carried out in one statement.
SELECT answer[1], answer[2] FROM producers WHERE producer = :producer AND answer IS NOT NULL;

-- name: begin_migration
-- Begin the transaction in which one process at a time migrates the tables.
-- The path is set last: if it were resolved before the lock, a schema that another process is creating would not be found.
BEGIN;
SELECT set_config('lock_timeout', :lock_ms, true), set_config('statement_timeout', :statement_ms, true),
       set_config('idle_in_transaction_session_timeout', :idle_ms, true);
SELECT pg_advisory_xact_lock(hashtextextended(:lock, 0));
SELECT set_config('search_path', :path, true);

-- name: has_schema
-- Tell whether our schema and its table of schema versions exist.
SELECT to_regnamespace(:schema) IS NOT NULL, to_regclass(:versions) IS NOT NULL;

-- name: backend_pid
-- Tell the process id of the server process of this session.
SELECT pg_backend_pid();

-- name: make_schema
-- Create our schema; its name, which was checked, is inserted as text.
CREATE SCHEMA "{schema}";

-- name: listen
-- Receive notifications; the channel, whose name was checked, is inserted as text.
LISTEN "{channel}";

-- name: look_at_topics
-- Read the newest offsets of some topics, on a connection of the listener's; the schema is inserted as text.
SELECT name, head FROM "{schema}".topics WHERE name = ANY(:topics::text[]);

-- name: make_versions
-- Create the table of schema versions.
CREATE TABLE IF NOT EXISTS harn_schema (concern text PRIMARY KEY, version integer NOT NULL);

-- name: notify
-- Notify the listeners of each topic, in a transaction of its own. All notifications of a server share one lock, so
-- this one waits for it only briefly.
SELECT set_config('lock_timeout', '50', true), set_config('synchronous_commit', 'off', true), pg_notify(:channel, topic)
FROM unnest(:topics::text[]) AS topic;

-- name: forget_producers
-- Delete producers that have not written for a long time.
DELETE FROM producers WHERE seen_ms < :before;

-- name: freeze
-- Block every append until this transaction ends.
LOCK TABLE topics IN EXCLUSIVE MODE;
