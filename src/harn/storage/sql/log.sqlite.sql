-- fragment: short_record(topic, id)
-- Return the payload of a topic's record if it is short; else null.
(SELECT CASE WHEN length(payload) <= 8192 THEN payload END FROM events
    WHERE topic_id = (SELECT topic_id FROM topics WHERE name = {topic}) AND events.id = {id})

-- name: take_offsets
-- Take the next offsets of a topic, and add it on first use; returns the last offset, and a time that never goes back.
INSERT INTO topics (name, head, largest, newest_ms) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE
SET head = head + ?2, largest = max(largest, ?3), newest_ms = max(newest_ms, ?4)
RETURNING topic_id, head, newest_ms;

-- name: move_head
-- Take the next offsets of a topic if its row is still as we last wrote it; costs a third of take_offsets.
UPDATE topics SET head = ?1, largest = max(largest, ?2), newest_ms = ?3
WHERE topic_id = ?4 AND name = ?5 AND head = ?6 AND newest_ms = ?7;

-- name: insert_events
-- Write records at the offsets taken for them.
INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- name: tick
-- Move the store's clock forward, never back.
INSERT INTO store_clock (one, ms) VALUES (1, :clock)
ON CONFLICT (one) DO UPDATE SET ms = max(ms, :clock) RETURNING ms;

-- name: read_clock
-- Read the store's clock without moving it.
SELECT ms FROM store_clock;

-- name: has_versions
-- Tell whether the table of schema versions exists.
SELECT 1 FROM sqlite_schema WHERE name = 'harn_schema';

-- name: make_versions
-- Create the table of schema versions.
CREATE TABLE IF NOT EXISTS harn_schema (concern TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- name: freeze
-- Block every append until this transaction ends. Nothing to do here: SQLite has one writing transaction at a time.
SELECT 1;
