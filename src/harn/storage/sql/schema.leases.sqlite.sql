-- version: 1
CREATE TABLE leases (
    name TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    expires_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
-- version: 2
CREATE TABLE consumers (
    lease TEXT PRIMARY KEY,
    consumer TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    queues TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    is_ended INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
-- version: 3
ALTER TABLE consumers ADD COLUMN functions TEXT NOT NULL DEFAULT '{}';
