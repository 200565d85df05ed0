-- fragment: is_one_of(text, list)
-- Whether a text is in a list, which is JSON.
{text} IN (SELECT value FROM json_each({list}))

-- name: trigger_restore_inbox
-- Fill trigger_inbox again, a row at a time.
INSERT INTO trigger_inbox (envelope, binding_id, event_id, owner, attempt, due_ms, taken)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: trigger_restore_dedupe
-- Fill trigger_dedupe again, a row at a time.
INSERT INTO trigger_dedupe (scope, key, event_id, digest, until_ms)
VALUES (?1, ?2, ?3, ?4, ?5);

-- name: trigger_restore_cron
-- Fill trigger_cron again, a row at a time.
INSERT INTO trigger_cron (trigger_id, last_ms)
VALUES (?1, ?2);

-- name: trigger_restore_owners
-- Fill trigger_owners again, a row at a time.
INSERT INTO trigger_owners (owner, until_ms)
VALUES (?1, ?2);

-- name: trigger_restore_marks
-- Fill trigger_marks again, a row at a time.
INSERT INTO trigger_marks (gate, ticket, owner, rank, held, envelope, at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);

-- name: trigger_restore_circuits
-- Fill trigger_circuits again, a row at a time.
INSERT INTO trigger_circuits (destination, failures, open_until_ms, probing_until_ms)
VALUES (?1, ?2, ?3, ?4);

-- name: trigger_restore_dead
-- Fill trigger_dead again, a row at a time.
INSERT INTO trigger_dead (id, entry, event_id, binding_id, state, at_ms)
VALUES (?1, ?2, ?3, ?4, ?5, ?6);
