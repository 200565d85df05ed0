-- name: take_offsets
-- Take the next offsets of a topic, making it on first use; the last one comes back, and a time that does not go back.
INSERT INTO topics (name, head, largest, newest_ms) VALUES (:topic, :count, :largest, :clock)
ON CONFLICT (name) DO UPDATE
SET head = head + :count, largest = max(largest, :largest), newest_ms = max(newest_ms, :clock)
RETURNING topic_id, head, coalesce(:fake, newest_ms);

-- name: insert_events
-- Write records at the offsets taken for them.
INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- name: tick
-- Move the store's clock forward, never back.
INSERT INTO store_clock (one, ms) VALUES (1, :clock)
ON CONFLICT (one) DO UPDATE SET ms = max(ms, :clock) RETURNING ms;

-- name: freeze
-- Let nobody append until this transaction ends: a writing transaction is alone already.
SELECT 1;
