-- name: take_offsets
-- Take the next offsets of a topic, making it on first use; its row stays locked until the commit.
INSERT INTO topics (name, head, largest) VALUES (:topic, :count, :largest)
ON CONFLICT (name) DO UPDATE SET head = topics.head + :count, largest = greatest(topics.largest, :largest)
RETURNING topic_id, head, :now;

-- name: insert_events
-- Write records at the offsets taken for them.
INSERT INTO events (topic_id, id, kind, payload, headers, occurred_at_ms)
SELECT * FROM unnest(:topic_id::bigint[], :id::bigint[], :kind::text[], :payload::bytea[], :headers::bytea[], :at::bigint[]);
