-- name: find_ticket
-- Find the job of a ticket.
SELECT t.job_id FROM job_tickets t JOIN queues q ON q.queue_id = t.queue_id WHERE q.name = :queue AND t.ticket = :ticket;

-- name: forget_tickets
-- Remove the tickets of settled jobs below an id.
DELETE FROM job_tickets WHERE queue_id = :queue_id AND job_id < :below
AND coalesce((SELECT j.state FROM jobs j WHERE j.queue_id = job_tickets.queue_id AND j.id = job_tickets.job_id), 4) >= 4;

-- name: dump_tickets
-- Read the index of tickets whole.
SELECT queue_id, ticket, job_id FROM job_tickets ORDER BY queue_id, ticket;

-- name: clear_tickets
-- Empty the index of tickets.
DELETE FROM job_tickets;
