-- version: 1
CREATE TABLE leases (
    name text COLLATE "C" PRIMARY KEY,
    holder text NOT NULL,
    epoch bigint NOT NULL,
    expires_at_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
-- version: 2
CREATE TABLE consumers (
    lease text COLLATE "C" PRIMARY KEY,
    consumer text COLLATE "C" NOT NULL,
    host text COLLATE "C" NOT NULL,
    pid bigint NOT NULL,
    queues text COLLATE "C" NOT NULL,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    is_ended bigint NOT NULL DEFAULT 0
);
-- version: 3
ALTER TABLE consumers ADD COLUMN functions text COLLATE "C" NOT NULL DEFAULT '{}';
