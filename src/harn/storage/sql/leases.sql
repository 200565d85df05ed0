-- name: take_lease
-- Take a lease that is free or has expired; its epoch rises.
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
-- Keep a lease that is still of this epoch.
UPDATE leases SET expires_at_ms = :now + :ttl WHERE name = :lease AND epoch = :epoch AND expires_at_ms > 0
RETURNING epoch;

-- name: release_lease
-- Release a lease of this epoch; its epoch stays, so that the next one is higher.
UPDATE leases SET expires_at_ms = 0, holder = '' WHERE name = :lease AND epoch = :epoch RETURNING epoch;
