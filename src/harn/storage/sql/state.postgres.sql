-- name: list_state
-- List the keys of a space in a range, without reading what they hold.
SELECT key FROM state_keys
WHERE space = :space AND key >= :first AND key < :last AND is_deleted = 0 ORDER BY key LIMIT :limit;

-- name: put_state
-- Make records the latest ones of their keys.
INSERT INTO state_keys (space, key, version, is_deleted, entry, value)
SELECT * FROM unnest(:space::text[], :key::text[], :version::bigint[], :is_deleted::bigint[], :entry::bigint[], :value::bytea[])
ON CONFLICT (space, key) DO UPDATE SET version = excluded.version, is_deleted = excluded.is_deleted, entry = excluded.entry,
    value = excluded.value;

-- name: restore_state
-- Fill the index of stored values again.
INSERT INTO state_keys (space, key, version, is_deleted, entry, value)
SELECT * FROM unnest(:space::text[], :key::text[], :version::bigint[], :is_deleted::bigint[], :entry::bigint[], :value::bytea[]);
