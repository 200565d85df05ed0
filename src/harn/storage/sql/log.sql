-- name: now
-- Tell the store's time.
SELECT :now;

-- name: read_events
-- Read a page of a topic after an offset; fewer rows where the topic holds large records.
SELECT e.id, e.kind, e.payload, e.headers, e.occurred_at_ms
FROM topics t JOIN events e ON e.topic_id = t.topic_id
WHERE t.name = :topic AND e.id > :after
ORDER BY e.id
LIMIT coalesce((SELECT CASE WHEN :limit * (largest + 1) > :budget THEN 1 + :budget / (largest + 1) ELSE :limit END
                FROM topics WHERE name = :topic), 0);

-- name: read_records
-- Read a page as read_events does, with each record's place in the order of all topics.
SELECT e.seq, e.id, e.kind, e.payload, e.headers, e.occurred_at_ms
FROM topics t JOIN events e ON e.topic_id = t.topic_id
WHERE t.name = :topic AND e.id > :after
ORDER BY e.id
LIMIT coalesce((SELECT CASE WHEN :limit * (largest + 1) > :budget THEN 1 + :budget / (largest + 1) ELSE :limit END
                FROM topics WHERE name = :topic), 0);

-- name: topic_head
-- Tell the newest offset of a topic, trimmed or not.
SELECT head FROM topics WHERE name = :topic;

-- name: list_topics
-- List every topic with its newest offset.
SELECT name, head FROM topics ORDER BY name;

-- name: topic_extent
-- Tell the oldest offset still kept and how many are.
SELECT min(e.id), count(*)
FROM topics t JOIN events e ON e.topic_id = t.topic_id WHERE t.name = :topic;

-- name: first_offset
-- Tell the oldest offset still kept.
SELECT e.id FROM topics t JOIN events e ON e.topic_id = t.topic_id
WHERE t.name = :topic ORDER BY e.id LIMIT 1;

-- name: first_offset_since
-- Tell the oldest offset that is not older than a time.
SELECT e.id FROM topics t JOIN events e ON e.topic_id = t.topic_id
WHERE t.name = :topic AND e.occurred_at_ms >= :since ORDER BY e.id LIMIT 1;

-- name: trim_events
-- Remove a topic's records below an offset, at most so many at a time.
DELETE FROM events WHERE topic_id = (SELECT topic_id FROM topics WHERE name = :topic)
AND id < :below
AND id < (SELECT min(id) FROM events
          WHERE topic_id = (SELECT topic_id FROM topics WHERE name = :topic)) + :at_most
RETURNING id;

-- name: raise_head
-- Make sure that a topic exists and that its offsets go on after a given one.
INSERT INTO topics (name, head, largest) VALUES (:topic, :head, 0)
ON CONFLICT (name) DO UPDATE SET head = CASE WHEN topics.head < excluded.head THEN excluded.head ELSE topics.head END
RETURNING topic_id, head;

-- name: note_size
-- Remember the largest record that a topic has held.
UPDATE topics SET largest = :largest WHERE name = :topic AND largest < :largest;

-- name: move_cursor
-- Move a consumer's cursor forward, never back.
INSERT INTO cursors (topic, consumer, position) VALUES (:topic, :consumer, :position)
ON CONFLICT (topic, consumer) DO UPDATE SET position =
    CASE WHEN cursors.position < excluded.position THEN excluded.position ELSE cursors.position END
RETURNING position;

-- name: read_cursor
-- Tell where a consumer stands.
SELECT position FROM cursors WHERE topic = :topic AND consumer = :consumer;

-- name: lowest_cursor
-- Tell where the slowest consumer of a topic stands.
SELECT min(position) FROM cursors WHERE topic = :topic;

-- name: drop_cursor
-- Forget a consumer of a topic.
DELETE FROM cursors WHERE topic = :topic AND consumer = :consumer RETURNING position;

-- name: list_cursors
-- List every consumer's place.
SELECT topic, consumer, position FROM cursors ORDER BY topic, consumer;
