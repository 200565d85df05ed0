-- name: take_lease
-- Take a lease that is free or has expired, with the next epoch.
INSERT INTO leases (name, holder, epoch, expires_at_ms) VALUES (:lease, :holder, 1, :now + :ttl)
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, epoch = leases.epoch + 1,
    expires_at_ms = excluded.expires_at_ms
WHERE leases.expires_at_ms <= :now
RETURNING epoch, expires_at_ms;

-- name: read_lease
-- Read the holder of a lease and when it expires, by the store's time.
SELECT holder, expires_at_ms, :now FROM leases WHERE name = :lease;

-- name: list_leases
-- List the leases that are held, by name.
SELECT name, holder, epoch, expires_at_ms - :now FROM leases WHERE expires_at_ms > :now
ORDER BY name LIMIT :limit;

-- name: renew_lease
-- Renew a lease that still has this epoch.
UPDATE leases SET expires_at_ms = :now + :ttl WHERE name = :lease AND epoch = :epoch AND expires_at_ms > 0
RETURNING epoch;

-- name: release_lease
-- Release a lease that still has this epoch; the epoch stays, so that the next holder's is higher.
UPDATE leases SET expires_at_ms = 0, holder = '' WHERE name = :lease AND epoch = :epoch RETURNING epoch;

-- name: keep_consumer
-- Renew a consumer's lease, or take it for the first time; returns no row if its claims are being ended.
INSERT INTO consumers (lease, consumer, host, pid, queues, functions, started_at, seen_at, expires_at)
VALUES (:lease, :consumer, :host, :pid, :queues, :functions, :now, :now, :now + :ttl)
ON CONFLICT (lease) DO UPDATE SET queues = excluded.queues, functions = excluded.functions, seen_at = excluded.seen_at, expires_at = excluded.expires_at
WHERE consumers.is_ended = 0
RETURNING expires_at;

-- name: drop_consumer
-- Delete a consumer that has stopped.
DELETE FROM consumers WHERE lease = :lease;

-- name: expired_consumers
-- List consumers whose lease has expired and whose claims may not have been ended.
SELECT lease, consumer, queues FROM consumers WHERE is_ended = 1 ORDER BY expires_at LIMIT :limit;

-- name: next_consumer_expiry
-- Tell when the next lease of a consumer expires unless it is renewed, and the time.
SELECT min(expires_at), :now FROM consumers WHERE is_ended = 0;

-- name: ended_consumer
-- Tell whether the claims of a consumer are being ended, or have been.
SELECT 1 FROM consumers WHERE lease = :lease AND is_ended <> 0;

-- name: end_consumer
-- Record that the claims of an expired consumer have been ended.
UPDATE consumers SET is_ended = 2 WHERE lease = :lease;

-- name: forget_consumers
-- Delete consumers whose lease expired long ago.
DELETE FROM consumers WHERE is_ended = 2 AND expires_at < :before;

-- name: list_consumers
-- List consumers, the oldest first, and the time.
SELECT lease, consumer, host, pid, queues, functions, started_at, seen_at, expires_at, :now FROM consumers ORDER BY started_at, lease LIMIT :limit;
