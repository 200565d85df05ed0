-- name: limit_buckets
-- Read buckets by their keys (a JSON list), and whether a ticket is in their line. No other connection can write now.
SELECT bucket_id, key, live, kept, head, next, head_us, tail_us, paused_us,
    rule_limit, rule_us, rule_until_us, other_rules, spilled, recent,
    EXISTS (SELECT 1 FROM limit_line l WHERE l.bucket_id = b.bucket_id)
FROM limit_buckets b WHERE key IN (SELECT value FROM json_each(:keys));

-- name: limit_bucket
-- Read one bucket by its key, and whether a ticket is in its line.
SELECT bucket_id, key, live, kept, head, next, head_us, tail_us, paused_us,
    rule_limit, rule_us, rule_until_us, other_rules, spilled, recent,
    EXISTS (SELECT 1 FROM limit_line l WHERE l.bucket_id = b.bucket_id)
FROM limit_buckets b WHERE key = :key;

-- name: limit_version
-- Return a number that changes when another connection has written.
PRAGMA data_version;

-- name: limit_make
-- Add the buckets of these keys that do not exist yet.
INSERT INTO limit_buckets (key) SELECT value FROM json_each(:keys) WHERE true
ON CONFLICT (key) DO NOTHING;

-- name: limit_heads
-- Read the first ticket in the line of each bucket.
SELECT l.bucket_id, NULL, l.ticket, l.owner, o.until_us
FROM json_each(:ids) j
CROSS JOIN limit_line l ON l.bucket_id = j.value
    AND l.ticket = (SELECT min(ticket) FROM limit_line WHERE bucket_id = j.value)
LEFT JOIN limit_owners o ON o.owner = l.owner;

-- name: limit_insert_rows
-- Charge rows.
INSERT OR REPLACE INTO limit_rows (bucket_id, seq, expires_us, units) VALUES (?1, ?2, ?3, ?4);

-- name: limit_join
-- Add tickets to the lines of buckets; a ticket that is in a line already stays as it is.
INSERT OR IGNORE INTO limit_line (bucket_id, ticket, owner, charge, lines) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: limit_leave
-- Delete tickets from the lines of buckets.
DELETE FROM limit_line WHERE bucket_id = ?1 AND ticket = ?2;

-- name: limit_store
-- Write the columns of buckets.
UPDATE limit_buckets SET live = ?2, kept = ?3, head = ?4, next = ?5, head_us = ?6, tail_us = ?7,
    paused_us = ?8, rule_limit = ?9, rule_us = ?10, rule_until_us = ?11, other_rules = ?12,
    spilled = ?13, recent = ?14 WHERE bucket_id = ?1;

-- name: limit_sweep
-- Delete some buckets that have been unused for long: no row, rule or pause in force, and no ticket in line.
DELETE FROM limit_buckets WHERE bucket_id IN (
    SELECT b.bucket_id FROM limit_buckets b
    WHERE b.tail_us < :before AND b.rule_until_us < :before AND b.paused_us < :before
    AND NOT EXISTS (SELECT 1 FROM limit_line l WHERE l.bucket_id = b.bucket_id) LIMIT 200)
RETURNING bucket_id;
