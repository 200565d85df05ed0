-- name: take_expired_consumers
-- Mark the consumers whose lease has expired: from now on it cannot be renewed, and their claims are ended.
-- One that is being renewed at this moment is left alone, also if its owner was stopped in the middle of it.
UPDATE consumers SET is_ended = 1 WHERE lease IN (
    SELECT lease FROM consumers WHERE is_ended = 0 AND expires_at <= :now FOR UPDATE SKIP LOCKED);
