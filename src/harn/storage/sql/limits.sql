-- name: limit_rows
-- Read charged rows of a bucket from a number on, oldest first.
SELECT seq, expires_us, units FROM limit_rows
WHERE bucket_id = :bucket AND seq >= :first ORDER BY seq LIMIT :count;

-- name: limit_last
-- Tell when the newest row that has units expires.
SELECT expires_us FROM limit_rows
WHERE bucket_id = :bucket AND seq >= :first AND units > 0 ORDER BY seq DESC LIMIT 1;

-- name: limit_set_units
-- Correct the units of a row.
UPDATE limit_rows SET units = :units WHERE bucket_id = :bucket AND seq = :seq;

-- name: limit_cut_back
-- Make rows of a bucket that expire after a time expire at that time.
UPDATE limit_rows SET expires_us = :latest WHERE bucket_id = :bucket AND expires_us > :latest;

-- name: limit_shift
-- Make the rows of a bucket from a number on expire later by some time.
UPDATE limit_rows SET expires_us = expires_us + :by WHERE bucket_id = :bucket AND seq >= :first;

-- name: limit_prune
-- Delete expired rows.
DELETE FROM limit_rows WHERE bucket_id = :bucket AND seq < :below;

-- name: limit_take_tickets
-- Take the next ticket numbers; returns the last one.
UPDATE limit_counter SET ticket = ticket + :count RETURNING ticket;

-- name: limit_ahead
-- Sum up the first tickets ahead of a ticket: their charges, their number, and the most lines that one of them is in.
SELECT CAST(coalesce(sum(charge), 0) AS bigint), count(*), CAST(coalesce(max(lines), 0) AS bigint) FROM
    (SELECT charge, lines FROM limit_line WHERE bucket_id = :bucket AND ticket < :ticket
     ORDER BY ticket LIMIT :most) AS ahead;

-- name: limit_lease
-- Renew the lease of an owner of tickets, or take it.
INSERT INTO limit_owners (owner, until_us) VALUES (:owner, :until)
ON CONFLICT (owner) DO UPDATE SET until_us = excluded.until_us;

-- name: limit_owner
-- Tell when the lease of an owner expires.
SELECT until_us FROM limit_owners WHERE owner = :owner;

-- name: limit_drop_line
-- Delete every ticket of an owner.
DELETE FROM limit_line WHERE owner = :owner;

-- name: limit_drop_owner
-- Delete an owner.
DELETE FROM limit_owners WHERE owner = :owner;

-- name: limit_drop_silent
-- Delete owners whose lease expired long ago and that have no ticket.
DELETE FROM limit_owners WHERE until_us < :before
AND NOT EXISTS (SELECT 1 FROM limit_line l WHERE l.owner = limit_owners.owner);

-- name: limit_list
-- List every bucket with the sum of its stored rows, when the first of them expires, their number, and the number of
-- tickets in its line.
SELECT b.key, b.rule_limit, b.rule_us, b.rule_until_us, b.other_rules, b.paused_us, b.head, b.spilled, b.recent,
    (SELECT CAST(coalesce(sum(r.units), 0) AS bigint) FROM limit_rows r
     WHERE r.bucket_id = b.bucket_id AND r.seq >= b.head AND r.expires_us > :instant),
    (SELECT min(r.expires_us) FROM limit_rows r
     WHERE r.bucket_id = b.bucket_id AND r.seq >= b.head AND r.units > 0 AND r.expires_us > :instant),
    (SELECT count(*) FROM limit_rows r
     WHERE r.bucket_id = b.bucket_id AND r.seq >= b.head AND r.expires_us > :instant),
    (SELECT count(*) FROM limit_line l WHERE l.bucket_id = b.bucket_id)
FROM limit_buckets b ORDER BY b.key;
