-- name: bind_tickets
-- Let tickets stand for jobs.
INSERT INTO job_tickets (queue_id, ticket, job_id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING;

-- name: restore_tickets
-- Fill the index of tickets.
INSERT INTO job_tickets (queue_id, ticket, job_id) VALUES (?1, ?2, ?3);
