-- name: take_expired_consumers
-- Mark the consumers whose lease has expired: from now on it cannot be renewed, and their claims are ended.
UPDATE consumers SET is_ended = 1 WHERE is_ended = 0 AND expires_at <= :now;
