-- name: limit_rows
-- Read charged rows of a bucket from one on, oldest first.
SELECT seq, expires_us, units FROM limit_rows
WHERE bucket_id = :bucket AND seq >= :first ORDER BY seq LIMIT :count;

-- name: limit_last
-- Tell when the newest row expires that still counts for something.
SELECT expires_us FROM limit_rows
WHERE bucket_id = :bucket AND seq >= :first AND units > 0 ORDER BY seq DESC LIMIT 1;

-- name: limit_set_units
-- Correct what a row was charged.
UPDATE limit_rows SET units = :units WHERE bucket_id = :bucket AND seq = :seq;

-- name: limit_cut_back
-- Let no row of a bucket expire later than this.
UPDATE limit_rows SET expires_us = :latest WHERE bucket_id = :bucket AND expires_us > :latest;

-- name: limit_shift
-- Let the rows of a bucket from one on expire so much later.
UPDATE limit_rows SET expires_us = expires_us + :by WHERE bucket_id = :bucket AND seq >= :first;

-- name: limit_prune
-- Remove rows that no longer count.
DELETE FROM limit_rows WHERE bucket_id = :bucket AND seq < :below;

-- name: limit_take_tickets
-- Take the next numbers of the line; the last one comes back.
UPDATE limit_counter SET ticket = ticket + :count RETURNING ticket;

-- name: limit_ahead
-- Tell how much the first of those ahead of a ticket will charge, how many they are, and in how many
-- lines any of them stands.
SELECT CAST(coalesce(sum(charge), 0) AS bigint), count(*), CAST(coalesce(max(lines), 0) AS bigint) FROM
    (SELECT charge, lines FROM limit_line WHERE bucket_id = :bucket AND ticket < :ticket
     ORDER BY ticket LIMIT :most) AS ahead;

-- name: limit_lease
-- Say until when an owner of tickets is known to be alive.
INSERT INTO limit_owners (owner, until_us) VALUES (:owner, :until)
ON CONFLICT (owner) DO UPDATE SET until_us = excluded.until_us;

-- name: limit_owner
-- Tell until when an owner is known to be alive.
SELECT until_us FROM limit_owners WHERE owner = :owner;

-- name: limit_drop_line
-- Remove every ticket of an owner.
DELETE FROM limit_line WHERE owner = :owner;

-- name: limit_drop_owner
-- Forget an owner.
DELETE FROM limit_owners WHERE owner = :owner;

-- name: limit_drop_silent
-- Forget owners that have been silent for long and have no ticket.
DELETE FROM limit_owners WHERE until_us < :before
AND NOT EXISTS (SELECT 1 FROM limit_line l WHERE l.owner = limit_owners.owner);

-- name: limit_list
-- List every bucket with what its stored rows count now, when the first of them frees, and who waits.
SELECT b.key, b.rule_limit, b.rule_us, b.rule_until_us, b.other_rules, b.paused_us, b.head, b.spilled, b.recent,
    (SELECT CAST(coalesce(sum(r.units), 0) AS bigint) FROM limit_rows r
     WHERE r.bucket_id = b.bucket_id AND r.seq >= b.head AND r.expires_us > :instant),
    (SELECT min(r.expires_us) FROM limit_rows r
     WHERE r.bucket_id = b.bucket_id AND r.seq >= b.head AND r.units > 0 AND r.expires_us > :instant),
    (SELECT count(*) FROM limit_rows r
     WHERE r.bucket_id = b.bucket_id AND r.seq >= b.head AND r.expires_us > :instant),
    (SELECT count(*) FROM limit_line l WHERE l.bucket_id = b.bucket_id)
FROM limit_buckets b ORDER BY b.key;
