-- name: trigger_inbox_add
-- Note an envelope that waits to be dispatched.
INSERT INTO trigger_inbox (envelope, binding_id, event_id, owner, attempt, due_ms, taken)
VALUES (:envelope, :binding_id, :event_id, :owner, 1, :due_ms, 1);

-- name: trigger_inbox_drop
-- Settle an envelope.
DELETE FROM trigger_inbox WHERE envelope = :envelope RETURNING owner;

-- name: trigger_inbox_get
-- Tell who dispatches an envelope and how far that is.
SELECT owner, attempt, due_ms, taken FROM trigger_inbox WHERE envelope = :envelope;

-- name: trigger_inbox_retry
-- Note which attempt an envelope waits for, and until when.
UPDATE trigger_inbox SET attempt = :attempt, due_ms = :due_ms WHERE envelope = :envelope;

-- name: trigger_inbox_take
-- Give an envelope to another owner; :died is 1 if the owner before has died, 0 if it left.
UPDATE trigger_inbox SET owner = :owner, taken = taken + :died WHERE envelope = :envelope;

-- name: trigger_inbox_orphans
-- List envelopes whose owner is no longer there, oldest first, and whether that owner died.
SELECT envelope, binding_id, attempt, due_ms, taken,
       CASE WHEN EXISTS (SELECT 1 FROM trigger_owners o WHERE o.owner = i.owner AND o.until_ms = 0)
            THEN 0 ELSE 1 END
FROM trigger_inbox i
WHERE NOT EXISTS (SELECT 1 FROM trigger_owners o WHERE o.owner = i.owner AND o.until_ms > :now)
ORDER BY envelope LIMIT :limit;

-- name: trigger_inbox_pending
-- List envelopes that are not settled, oldest first.
SELECT envelope, binding_id, event_id, owner, attempt, due_ms, taken FROM trigger_inbox
ORDER BY envelope LIMIT :limit;

-- name: trigger_inbox_states
-- List envelopes that are not settled, oldest first, and until when their owner is heard of.
SELECT i.envelope, i.binding_id, i.event_id, i.owner, i.attempt, i.due_ms, i.taken, o.until_ms
FROM trigger_inbox i LEFT JOIN trigger_owners o ON o.owner = i.owner
ORDER BY i.envelope LIMIT :limit;

-- name: trigger_inbox_tally
-- Count the envelopes that are not settled, and those of them that wait for another attempt.
SELECT count(*), coalesce(sum(CASE WHEN due_ms > :now THEN 1 ELSE 0 END), 0), :now FROM trigger_inbox;

-- name: trigger_dedupe_tally
-- Count the claims on a delivery that still hold, and those that have run out.
SELECT coalesce(sum(CASE WHEN until_ms > :now THEN 1 ELSE 0 END), 0),
       coalesce(sum(CASE WHEN until_ms > :now THEN 0 ELSE 1 END), 0) FROM trigger_dedupe;

-- name: trigger_inbox_counts
-- Tell how many envelopes are not settled, and the oldest.
SELECT count(*), min(envelope) FROM trigger_inbox;

-- name: trigger_dedupe_find
-- Find who holds a key, as long as it is held.
SELECT event_id, digest FROM trigger_dedupe WHERE scope = :scope AND key = :key AND until_ms > :now;

-- name: trigger_dedupe_claim
-- Hold a key; one whose time has passed is replaced.
INSERT INTO trigger_dedupe (scope, key, event_id, digest, until_ms)
VALUES (:scope, :key, :event_id, :digest, :until_ms)
ON CONFLICT (scope, key) DO UPDATE SET event_id = excluded.event_id, digest = excluded.digest,
    until_ms = excluded.until_ms;

-- name: trigger_dedupe_expired
-- Tell whether there are keys whose time has passed.
SELECT count(*) FROM trigger_dedupe WHERE until_ms <= :before;

-- name: trigger_dedupe_prune
-- Forget keys whose time has passed.
DELETE FROM trigger_dedupe WHERE until_ms <= :before;

-- name: trigger_cron_last
-- Tell the last instant of a schedule that fired.
SELECT last_ms FROM trigger_cron WHERE trigger_id = :trigger_id;

-- name: trigger_cron_fire
-- Note an instant of a schedule; it never goes back.
INSERT INTO trigger_cron (trigger_id, last_ms) VALUES (:trigger_id, :last_ms)
ON CONFLICT (trigger_id) DO UPDATE SET last_ms =
    CASE WHEN trigger_cron.last_ms < excluded.last_ms THEN excluded.last_ms ELSE trigger_cron.last_ms END;

-- name: trigger_owner_alive
-- Note that an owner is there until a time.
INSERT INTO trigger_owners (owner, until_ms) VALUES (:owner, :until_ms)
ON CONFLICT (owner) DO UPDATE SET until_ms = excluded.until_ms;

-- name: trigger_owner_until
-- Tell until when an owner is known to be there.
SELECT until_ms FROM trigger_owners WHERE owner = :owner;

-- name: trigger_owner_gone
-- Forget an owner.
DELETE FROM trigger_owners WHERE owner = :owner;

-- name: trigger_owners_stale
-- List owners that have been silent for long.
SELECT owner FROM trigger_owners o
WHERE until_ms < :before
  AND NOT (until_ms = 0 AND EXISTS (SELECT 1 FROM trigger_inbox i WHERE i.owner = o.owner))
ORDER BY owner;

-- name: trigger_mark_add
-- Put a mark before a gate.
INSERT INTO trigger_marks (gate, ticket, owner, rank, held, envelope, at_ms)
VALUES (:gate, :ticket, :owner, :rank, :held, :envelope, :at_ms);

-- name: trigger_mark_hold
-- Let a waiting mark hold its slot.
UPDATE trigger_marks SET held = 1, rank = :rank WHERE gate = :gate AND ticket = :ticket;

-- name: trigger_mark_drop
-- Take a mark away.
DELETE FROM trigger_marks WHERE gate = :gate AND ticket = :ticket RETURNING ticket;

-- name: trigger_marks_clear
-- Take every mark of a gate away.
DELETE FROM trigger_marks WHERE gate = :gate;

-- name: trigger_marks_prune
-- Take the marks of a gate away that have left its window.
DELETE FROM trigger_marks WHERE gate = :gate AND at_ms <= :before;

-- name: trigger_marks_expired
-- Tell how many marks have left their windows; such a mark has no owner, and its rank is the window.
SELECT count(*) FROM trigger_marks WHERE owner = '' AND at_ms + rank <= :before;

-- name: trigger_marks_expire
-- Take away every mark that has left its window.
DELETE FROM trigger_marks WHERE owner = '' AND at_ms + rank <= :before;

-- name: trigger_marks_of
-- List the marks of a gate in the order they came, and whether their owners are there.
SELECT m.ticket, m.owner, m.rank, m.held, m.envelope, m.at_ms,
       EXISTS (SELECT 1 FROM trigger_owners o WHERE o.owner = m.owner AND o.until_ms > :now)
FROM trigger_marks m WHERE m.gate = :gate ORDER BY m.ticket;

-- name: trigger_marks_oldest
-- Tell the oldest mark of all gates.
SELECT min(ticket) FROM trigger_marks;

-- name: trigger_circuit_get
-- Tell what is known of a destination.
SELECT failures, open_until_ms, probing_until_ms FROM trigger_circuits WHERE destination = :destination;

-- name: trigger_circuit_put
-- Note what is known of a destination.
INSERT INTO trigger_circuits (destination, failures, open_until_ms, probing_until_ms)
VALUES (:destination, :failures, :open_until_ms, :probing_until_ms)
ON CONFLICT (destination) DO UPDATE SET failures = excluded.failures,
    open_until_ms = excluded.open_until_ms, probing_until_ms = excluded.probing_until_ms;

-- name: trigger_circuit_drop
-- Forget a destination that works.
DELETE FROM trigger_circuits WHERE destination = :destination;

-- name: trigger_circuits_all
-- List destinations that have failed lately.
SELECT destination, failures, open_until_ms, probing_until_ms FROM trigger_circuits ORDER BY destination;

-- name: trigger_dead_put
-- Note a dead letter, or its new state.
INSERT INTO trigger_dead (id, entry, event_id, binding_id, state, at_ms)
VALUES (:id, :entry, :event_id, :binding_id, :state, :at_ms)
ON CONFLICT (id) DO UPDATE SET entry = excluded.entry, state = excluded.state;

-- name: trigger_dead_get
-- Find a dead letter.
SELECT entry, event_id, binding_id, state FROM trigger_dead WHERE id = :id;

-- name: trigger_dead_pending
-- List the dead letters that wait for somebody, oldest first.
SELECT id, entry, event_id, binding_id FROM trigger_dead WHERE state = 'pending' AND entry > :after
ORDER BY entry LIMIT :limit;

-- name: trigger_dead_count
-- Count the dead letters that wait for somebody.
SELECT count(*), min(entry) FROM trigger_dead WHERE state = 'pending';

-- name: trigger_dump_inbox
-- Write the inbox out.
SELECT envelope, binding_id, event_id, owner, attempt, due_ms, taken FROM trigger_inbox ORDER BY envelope;

-- name: trigger_clear_inbox
-- Empty the inbox.
DELETE FROM trigger_inbox;

-- name: trigger_dump_dedupe
-- Write the held keys out.
SELECT scope, key, event_id, digest, until_ms FROM trigger_dedupe ORDER BY scope, key;

-- name: trigger_clear_dedupe
-- Empty the held keys.
DELETE FROM trigger_dedupe;

-- name: trigger_dump_cron
-- Write the schedules' places out.
SELECT trigger_id, last_ms FROM trigger_cron ORDER BY trigger_id;

-- name: trigger_clear_cron
-- Empty the schedules' places.
DELETE FROM trigger_cron;

-- name: trigger_dump_owners
-- Write the owners out.
SELECT owner, until_ms FROM trigger_owners ORDER BY owner;

-- name: trigger_clear_owners
-- Empty the owners.
DELETE FROM trigger_owners;

-- name: trigger_dump_marks
-- Write the marks out.
SELECT gate, ticket, owner, rank, held, envelope, at_ms FROM trigger_marks ORDER BY gate, ticket;

-- name: trigger_clear_marks
-- Empty the marks.
DELETE FROM trigger_marks;

-- name: trigger_dump_circuits
-- Write the circuits out.
SELECT destination, failures, open_until_ms, probing_until_ms FROM trigger_circuits ORDER BY destination;

-- name: trigger_clear_circuits
-- Empty the circuits.
DELETE FROM trigger_circuits;

-- name: trigger_dump_dead
-- Write the dead letters' places out.
SELECT id, entry, event_id, binding_id, state, at_ms FROM trigger_dead ORDER BY id;

-- name: trigger_clear_dead
-- Empty the dead letters' places.
DELETE FROM trigger_dead;
