-- fragment: record(topic, id)
-- Return the payload of a topic's record; null if there is none.
(SELECT payload FROM events WHERE topic_id = (SELECT topic_id FROM topics WHERE name = {topic}) AND id = {id})

-- name: now
-- Tell the store's time.
SELECT :now;

-- name: read_events
-- Read a page of a topic after an offset; fewer rows if the topic has large records.
SELECT e.id, e.kind, e.payload, e.headers, e.occurred_at_ms
FROM topics t JOIN events e ON e.topic_id = t.topic_id
WHERE t.name = :topic AND e.id > :after
ORDER BY e.id
LIMIT coalesce((SELECT CASE WHEN :limit * (largest + 1) > :budget THEN 1 + :budget / (largest + 1) ELSE :limit END
                FROM topics WHERE name = :topic), 0);

-- name: read_records
-- Read a page like read_events, with each record's number in the order of all topics.
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

-- name: first_offset
-- Tell the oldest offset that is still kept.
SELECT e.id FROM topics t JOIN events e ON e.topic_id = t.topic_id
WHERE t.name = :topic ORDER BY e.id LIMIT 1;

-- name: first_offset_since
-- Tell the oldest offset, below one, that is not older than a time.
SELECT e.id FROM topics t JOIN events e ON e.topic_id = t.topic_id
WHERE t.name = :topic AND e.id < :below AND e.occurred_at_ms >= :since ORDER BY e.id LIMIT 1;

-- name: trim_events
-- Delete a topic's records below an offset, at most a number at a time.
DELETE FROM events WHERE topic_id = (SELECT topic_id FROM topics WHERE name = :topic)
AND id < :below
AND id < (SELECT min(id) FROM events
          WHERE topic_id = (SELECT topic_id FROM topics WHERE name = :topic)) + :at_most
RETURNING id;

-- name: raise_head
-- Add a topic if it does not exist, and make its newest offset at least a given one.
INSERT INTO topics (name, head, largest) VALUES (:topic, :head, 0)
ON CONFLICT (name) DO UPDATE SET head = CASE WHEN topics.head < excluded.head THEN excluded.head ELSE topics.head END
RETURNING topic_id, head;

-- name: move_cursor
-- Move a consumer's cursor forward, never back.
INSERT INTO cursors (topic, consumer, position) VALUES (:topic, :consumer, :position)
ON CONFLICT (topic, consumer) DO UPDATE SET position =
    CASE WHEN cursors.position < excluded.position THEN excluded.position ELSE cursors.position END
RETURNING position;

-- name: read_cursor
-- Read a consumer's cursor.
SELECT position FROM cursors WHERE topic = :topic AND consumer = :consumer;

-- name: lowest_cursor
-- Read the lowest cursor of a topic.
SELECT min(position) FROM cursors WHERE topic = :topic;

-- name: drop_cursor
-- Delete a consumer's cursor.
DELETE FROM cursors WHERE topic = :topic AND consumer = :consumer RETURNING position;

-- name: list_cursors
-- List every cursor.
SELECT topic, consumer, position FROM cursors ORDER BY topic, consumer;

-- name: versions
-- Read the schema version of each concern's tables.
SELECT concern, version FROM harn_schema;

-- name: note_version
-- Record the schema version of a concern's tables.
INSERT INTO harn_schema VALUES (:concern, :version) ON CONFLICT (concern) DO UPDATE SET version = excluded.version;
