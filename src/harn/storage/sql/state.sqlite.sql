-- name: list_state
-- List the keys of a space in a range, without reading what they hold.
SELECT key FROM state_keys INDEXED BY state_live
WHERE space = :space AND key >= :first AND key < :last AND is_deleted = 0 ORDER BY key LIMIT :limit;

-- name: put_state
-- Make records the latest ones of their keys.
INSERT INTO state_keys (space, key, version, is_deleted, entry, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (space, key) DO UPDATE SET version = excluded.version, is_deleted = excluded.is_deleted, entry = excluded.entry,
    value = excluded.value;

-- name: restore_state
-- Fill the index of stored values again.
INSERT INTO state_keys (space, key, version, is_deleted, entry, value) VALUES (?1, ?2, ?3, ?4, ?5, ?6);
