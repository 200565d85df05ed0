-- name: limit_buckets
-- Read buckets by their keys (a JSON list), and lock them until the commit.
-- The tickets in their lines must be read afterwards: only a snapshot taken after the lock shows all of them.
-- Unless all of the buckets exist, none is locked. Otherwise two transactions that add buckets could block each other.
SELECT bucket_id, key, live, kept, head, next, head_us, tail_us, paused_us,
    rule_limit, rule_us, rule_until_us, other_rules, spilled, recent, 1
FROM limit_buckets WHERE key IN (SELECT jsonb_array_elements_text(:keys::jsonb))
    AND jsonb_array_length(:keys::jsonb) =
        (SELECT count(*) FROM limit_buckets WHERE key IN (SELECT jsonb_array_elements_text(:keys::jsonb)))
ORDER BY key FOR UPDATE;

-- name: limit_bucket
-- Read one bucket by its key, and lock it until the commit.
SELECT bucket_id, key, live, kept, head, next, head_us, tail_us, paused_us,
    rule_limit, rule_us, rule_until_us, other_rules, spilled, recent, 1
FROM limit_buckets WHERE key = :key FOR UPDATE;

-- name: limit_make
-- Add the buckets of these keys that do not exist yet.
INSERT INTO limit_buckets (key)
SELECT wanted FROM jsonb_array_elements_text(:keys::jsonb) AS wanted ORDER BY wanted COLLATE "C"
ON CONFLICT (key) DO NOTHING;

-- name: limit_heads
-- Read the first ticket in the line of each bucket, and the server's time.
SELECT l.bucket_id, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, l.ticket, l.owner, o.until_us
FROM jsonb_array_elements_text(:ids::jsonb) AS j(id)
LEFT JOIN limit_line l ON l.bucket_id = j.id::bigint
    AND l.ticket = (SELECT min(ticket) FROM limit_line WHERE bucket_id = j.id::bigint)
LEFT JOIN limit_owners o ON o.owner = l.owner;

-- name: limit_now
-- Tell the server's time in microseconds.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: limit_insert_rows
-- Charge rows.
INSERT INTO limit_rows (bucket_id, seq, expires_us, units)
SELECT * FROM unnest(:bucket::bigint[], :seq::bigint[], :expires::bigint[], :units::bigint[])
ON CONFLICT (bucket_id, seq) DO UPDATE SET expires_us = excluded.expires_us, units = excluded.units;

-- name: limit_join
-- Add tickets to the lines of buckets; a ticket that is in a line already stays as it is.
INSERT INTO limit_line (bucket_id, ticket, owner, charge, lines)
SELECT * FROM unnest(:bucket::bigint[], :ticket::bigint[], :owner::text[], :charge::bigint[], :lines::bigint[])
ON CONFLICT DO NOTHING;

-- name: limit_leave
-- Delete tickets from the lines of buckets.
DELETE FROM limit_line l USING unnest(:bucket::bigint[], :ticket::bigint[]) AS gone(bucket, ticket)
WHERE l.bucket_id = gone.bucket AND l.ticket = gone.ticket;

-- name: limit_store
-- Write the columns of buckets.
UPDATE limit_buckets b SET live = u.live, kept = u.kept, head = u.head, next = u.next, head_us = u.head_us,
    tail_us = u.tail_us, paused_us = u.paused_us, rule_limit = u.rule_limit, rule_us = u.rule_us,
    rule_until_us = u.rule_until_us, other_rules = u.other_rules,
    spilled = u.spilled, recent = u.recent
FROM unnest(:bucket::bigint[], :live::bigint[], :kept::bigint[], :head::bigint[], :next::bigint[],
    :head_us::bigint[], :tail_us::bigint[], :paused_us::bigint[], :rule_limit::bigint[], :rule_us::bigint[],
    :rule_until_us::bigint[], :other_rules::text[], :spilled::bigint[], :recent::bytea[])
    AS u(bucket, live, kept, head, next, head_us, tail_us, paused_us, rule_limit, rule_us, rule_until_us, other_rules,
        spilled, recent)
WHERE b.bucket_id = u.bucket;

-- name: limit_sweep
-- Delete some buckets that have been unused for long: no row, rule or pause in force, and no ticket in line.
DELETE FROM limit_buckets WHERE bucket_id IN (
    SELECT b.bucket_id FROM limit_buckets b
    WHERE b.tail_us < :before AND b.rule_until_us < :before AND b.paused_us < :before
    AND NOT EXISTS (SELECT 1 FROM limit_line l WHERE l.bucket_id = b.bucket_id)
    LIMIT 200 FOR UPDATE SKIP LOCKED)
RETURNING bucket_id;
