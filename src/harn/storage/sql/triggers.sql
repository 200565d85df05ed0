-- name: trigger_inbox_add
-- Add an envelope that waits to be dispatched.
INSERT INTO trigger_inbox (envelope, binding_id, event_id, owner, attempt, due_ms, taken)
VALUES (:envelope, :binding_id, :event_id, :owner, 1, 0, 1);

-- name: trigger_inbox_drop
-- Delete an envelope that has been settled.
DELETE FROM trigger_inbox WHERE envelope = :envelope;

-- name: trigger_inbox_owner
-- Read the owner of an envelope.
SELECT owner FROM trigger_inbox WHERE envelope = :envelope;

-- name: trigger_inbox_retry
-- Record the attempt that an envelope waits for, and until when.
UPDATE trigger_inbox SET attempt = :attempt, due_ms = :due_ms WHERE envelope = :envelope;

-- name: trigger_inbox_take
-- Make another process the owner of an envelope; :died is 1 if the last owner died, 0 if it left.
UPDATE trigger_inbox SET owner = :owner, taken = taken + :died WHERE envelope = :envelope;

-- name: trigger_inbox_orphans
-- List envelopes of some triggers whose owner's lease has ended, oldest first, and whether that owner died.
SELECT envelope, attempt, due_ms, taken,
       CASE WHEN EXISTS (SELECT 1 FROM trigger_owners o WHERE o.owner = i.owner AND o.until_ms = 0)
            THEN 0 ELSE 1 END
FROM trigger_inbox i
WHERE envelope BETWEEN :first AND :last AND @is_one_of(binding_id, :bindings)
AND NOT EXISTS (SELECT 1 FROM trigger_owners o WHERE o.owner = i.owner AND o.until_ms > :now)
ORDER BY envelope LIMIT :limit;

-- name: trigger_inbox_pending
-- List envelopes that are not settled, oldest first.
SELECT envelope, binding_id, event_id, owner, attempt, due_ms, taken FROM trigger_inbox
ORDER BY envelope LIMIT :limit;

-- name: trigger_inbox_states
-- List envelopes that are not settled, oldest first, and when the leases of their owners expire.
SELECT i.envelope, i.binding_id, i.event_id, i.owner, i.attempt, i.due_ms, i.taken, o.until_ms
FROM trigger_inbox i LEFT JOIN trigger_owners o ON o.owner = i.owner
ORDER BY i.envelope LIMIT :limit;

-- name: trigger_inbox_tally
-- Count the envelopes that are not settled, and those of them that wait for another attempt.
SELECT count(*), coalesce(sum(CASE WHEN due_ms > :now THEN 1 ELSE 0 END), 0), :now FROM trigger_inbox;

-- name: trigger_dedupe_tally
-- Count the dedupe keys that are held, and those that have expired.
SELECT coalesce(sum(CASE WHEN until_ms > :now THEN 1 ELSE 0 END), 0),
       coalesce(sum(CASE WHEN until_ms > :now THEN 0 ELSE 1 END), 0) FROM trigger_dedupe;

-- name: trigger_inbox_counts
-- Count the envelopes that are not settled, and find the oldest.
SELECT count(*), min(envelope) FROM trigger_inbox;

-- name: trigger_dedupe_find
-- Find the event that holds a dedupe key, if it has not expired.
SELECT event_id, digest FROM trigger_dedupe WHERE scope = :scope AND key = :key AND until_ms > :now;

-- name: trigger_dedupe_claim
-- Make an event the holder of a dedupe key, instead of one whose time has passed.
INSERT INTO trigger_dedupe (scope, key, event_id, digest, until_ms)
VALUES (:scope, :key, :event_id, :digest, :until_ms)
ON CONFLICT (scope, key) DO UPDATE SET event_id = excluded.event_id, digest = excluded.digest,
    until_ms = excluded.until_ms;

-- name: trigger_dedupe_expired
-- Count the dedupe keys that have expired.
SELECT count(*) FROM trigger_dedupe WHERE until_ms <= :before;

-- name: trigger_dedupe_prune
-- Delete the dedupe keys that have expired.
DELETE FROM trigger_dedupe WHERE until_ms <= :before;

-- name: trigger_cron_last
-- Tell when a schedule last fired.
SELECT last_ms FROM trigger_cron WHERE trigger_id = :trigger_id;

-- name: trigger_cron_fire
-- Record when a schedule fired; the time never goes back.
INSERT INTO trigger_cron (trigger_id, last_ms) VALUES (:trigger_id, :last_ms)
ON CONFLICT (trigger_id) DO UPDATE SET last_ms =
    CASE WHEN trigger_cron.last_ms < excluded.last_ms THEN excluded.last_ms ELSE trigger_cron.last_ms END;

-- name: trigger_owner_alive
-- Renew the lease of an owner, or take it.
INSERT INTO trigger_owners (owner, until_ms) VALUES (:owner, :until_ms)
ON CONFLICT (owner) DO UPDATE SET until_ms = excluded.until_ms;

-- name: trigger_owner_until
-- Tell when the lease of an owner expires.
SELECT until_ms FROM trigger_owners WHERE owner = :owner;

-- name: trigger_owner_gone
-- Delete an owner.
DELETE FROM trigger_owners WHERE owner = :owner;

-- name: trigger_owners_stale
-- List owners whose lease ended long ago; one that left stays while envelopes name it.
SELECT owner FROM trigger_owners o
WHERE until_ms < :before
  AND NOT (until_ms = 0 AND EXISTS (SELECT 1 FROM trigger_inbox i WHERE i.owner = o.owner))
ORDER BY owner;

-- name: trigger_mark_add
-- Add a mark of a gate: an event that waits there, holds a slot, or counts in its window.
INSERT INTO trigger_marks (gate, ticket, owner, rank, held, envelope, at_ms)
VALUES (:gate, :ticket, :owner, :rank, :held, :envelope, :at_ms);

-- name: trigger_mark_hold
-- Give a waiting mark a slot.
UPDATE trigger_marks SET held = 1, rank = :rank WHERE gate = :gate AND ticket = :ticket;

-- name: trigger_mark_drop
-- Delete a mark.
DELETE FROM trigger_marks WHERE gate = :gate AND ticket = :ticket;

-- name: trigger_marks_clear
-- Delete every mark of a gate.
DELETE FROM trigger_marks WHERE gate = :gate;

-- name: trigger_marks_prune
-- Delete the marks of a gate that have left its window.
DELETE FROM trigger_marks WHERE gate = :gate AND at_ms <= :before;

-- name: trigger_marks_expired
-- Count the marks that have left their window. A mark of a window has no owner, and its rank is the window's length.
SELECT count(*) FROM trigger_marks WHERE owner = '' AND at_ms + rank <= :before;

-- name: trigger_marks_expire
-- Delete every mark that has left its window.
DELETE FROM trigger_marks WHERE owner = '' AND at_ms + rank <= :before;

-- name: trigger_marks_of
-- List the marks of a gate in the order they came, and whether their owners' leases are held.
SELECT m.ticket, m.owner, m.rank, m.held, m.envelope, m.at_ms,
       EXISTS (SELECT 1 FROM trigger_owners o WHERE o.owner = m.owner AND o.until_ms > :now)
FROM trigger_marks m WHERE m.gate = :gate ORDER BY m.ticket;

-- name: trigger_marks_ahead
-- List the marks of a gate that hold a slot, and the one whose turn comes first of those that wait.
SELECT m.ticket, m.owner, m.rank, m.held, m.envelope, m.at_ms,
       EXISTS (SELECT 1 FROM trigger_owners o WHERE o.owner = m.owner AND o.until_ms > :now)
FROM trigger_marks m
WHERE m.gate = :gate AND (m.held = 1 OR m.ticket = (
    SELECT w.ticket FROM trigger_marks w WHERE w.gate = :gate AND w.held = 0 ORDER BY w.rank, w.ticket LIMIT 1
))
ORDER BY m.ticket;

-- name: trigger_marks_oldest
-- Tell the oldest mark of all gates.
SELECT min(ticket) FROM trigger_marks;

-- name: trigger_circuit_get
-- Read the circuit of a destination.
SELECT failures, open_until_ms, probing_until_ms FROM trigger_circuits WHERE destination = :destination;

-- name: trigger_circuit_put
-- Write the circuit of a destination.
INSERT INTO trigger_circuits (destination, failures, open_until_ms, probing_until_ms)
VALUES (:destination, :failures, :open_until_ms, :probing_until_ms)
ON CONFLICT (destination) DO UPDATE SET failures = excluded.failures,
    open_until_ms = excluded.open_until_ms, probing_until_ms = excluded.probing_until_ms;

-- name: trigger_circuit_drop
-- Delete the circuit of a destination that works.
DELETE FROM trigger_circuits WHERE destination = :destination;

-- name: trigger_circuits_all
-- List the circuits of all destinations that have failed.
SELECT destination, failures, open_until_ms, probing_until_ms FROM trigger_circuits ORDER BY destination;

-- name: trigger_dead_put
-- Add a dead letter, or write its new state.
INSERT INTO trigger_dead (id, entry, event_id, binding_id, state, at_ms)
VALUES (:id, :entry, :event_id, :binding_id, :state, :at_ms)
ON CONFLICT (id) DO UPDATE SET entry = excluded.entry, state = excluded.state;

-- name: trigger_dead_get
-- Find a dead letter.
SELECT entry, event_id, binding_id, state FROM trigger_dead WHERE id = :id;

-- name: trigger_dead_pending
-- List the pending dead letters, oldest first.
SELECT id, entry, event_id, binding_id FROM trigger_dead WHERE state = 'pending' AND entry > :after
ORDER BY entry LIMIT :limit;

-- name: trigger_dead_count
-- Count the pending dead letters, and find the oldest.
SELECT count(*), min(entry) FROM trigger_dead WHERE state = 'pending';

-- name: trigger_dump_inbox
-- Read all of the inbox.
SELECT envelope, binding_id, event_id, owner, attempt, due_ms, taken FROM trigger_inbox ORDER BY envelope;

-- name: trigger_clear_inbox
-- Empty the inbox.
DELETE FROM trigger_inbox;

-- name: trigger_dump_dedupe
-- Read all dedupe keys.
SELECT scope, key, event_id, digest, until_ms FROM trigger_dedupe ORDER BY scope, key;

-- name: trigger_clear_dedupe
-- Delete all dedupe keys.
DELETE FROM trigger_dedupe;

-- name: trigger_dump_cron
-- Read when each schedule last fired.
SELECT trigger_id, last_ms FROM trigger_cron ORDER BY trigger_id;

-- name: trigger_clear_cron
-- Delete when the schedules last fired.
DELETE FROM trigger_cron;

-- name: trigger_dump_owners
-- Read all owners.
SELECT owner, until_ms FROM trigger_owners ORDER BY owner;

-- name: trigger_clear_owners
-- Delete all owners.
DELETE FROM trigger_owners;

-- name: trigger_dump_marks
-- Read all marks.
SELECT gate, ticket, owner, rank, held, envelope, at_ms FROM trigger_marks ORDER BY gate, ticket;

-- name: trigger_clear_marks
-- Delete all marks.
DELETE FROM trigger_marks;

-- name: trigger_dump_circuits
-- Read all circuits.
SELECT destination, failures, open_until_ms, probing_until_ms FROM trigger_circuits ORDER BY destination;

-- name: trigger_clear_circuits
-- Delete all circuits.
DELETE FROM trigger_circuits;

-- name: trigger_dump_dead
-- Read the index of dead letters.
SELECT id, entry, event_id, binding_id, state, at_ms FROM trigger_dead ORDER BY id;

-- name: trigger_clear_dead
-- Empty the index of dead letters.
DELETE FROM trigger_dead;
