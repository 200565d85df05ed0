-- fragment: is_one_of(text, list)
-- Whether a text is in a list, which is JSON.
{text} IN (SELECT json_array_elements_text({list}::json))

-- name: trigger_restore_inbox
-- Fill trigger_inbox again.
INSERT INTO trigger_inbox (envelope, binding_id, event_id, owner, attempt, due_ms, taken)
SELECT * FROM unnest(:envelope::bigint[], :binding_id::text[], :event_id::text[], :owner::text[], :attempt::bigint[], :due_ms::bigint[], :taken::bigint[]);

-- name: trigger_restore_dedupe
-- Fill trigger_dedupe again.
INSERT INTO trigger_dedupe (scope, key, event_id, digest, until_ms)
SELECT * FROM unnest(:scope::text[], :key::text[], :event_id::text[], :digest::text[], :until_ms::bigint[]);

-- name: trigger_restore_cron
-- Fill trigger_cron again.
INSERT INTO trigger_cron (trigger_id, last_ms)
SELECT * FROM unnest(:trigger_id::text[], :last_ms::bigint[]);

-- name: trigger_restore_owners
-- Fill trigger_owners again.
INSERT INTO trigger_owners (owner, until_ms)
SELECT * FROM unnest(:owner::text[], :until_ms::bigint[]);

-- name: trigger_restore_marks
-- Fill trigger_marks again.
INSERT INTO trigger_marks (gate, ticket, owner, rank, held, envelope, at_ms)
SELECT * FROM unnest(:gate::text[], :ticket::bigint[], :owner::text[], :rank::bigint[], :held::bigint[], :envelope::bigint[], :at_ms::bigint[]);

-- name: trigger_restore_circuits
-- Fill trigger_circuits again.
INSERT INTO trigger_circuits (destination, failures, open_until_ms, probing_until_ms)
SELECT * FROM unnest(:destination::text[], :failures::bigint[], :open_until_ms::bigint[], :probing_until_ms::bigint[]);

-- name: trigger_restore_dead
-- Fill trigger_dead again.
INSERT INTO trigger_dead (id, entry, event_id, binding_id, state, at_ms)
SELECT * FROM unnest(:id::text[], :entry::bigint[], :event_id::text[], :binding_id::text[], :state::text[], :at_ms::bigint[]);
