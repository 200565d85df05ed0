-- name: state_value
-- Read the row of a key, with its latest record if the row does not hold the value.
SELECT version, is_deleted, entry, value, CASE WHEN value IS NULL AND is_deleted = 0 THEN
    @record(:topic, entry) END
FROM state_keys WHERE space = :space AND key = :key;

-- name: oldest_state
-- Find the oldest record that is the latest one of its key.
SELECT min(entry) FROM state_keys WHERE space >= :first AND space < :last;

-- name: clear_state
-- Empty the index of stored values.
DELETE FROM state_keys;

-- name: dump_state
-- Read all of the index of stored values.
SELECT space, key, version, is_deleted, entry, value FROM state_keys ORDER BY space, key;
