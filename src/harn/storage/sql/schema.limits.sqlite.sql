-- version: 1
CREATE TABLE limit_buckets (
    bucket_id INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL UNIQUE,
    live INTEGER NOT NULL DEFAULT 0,
    kept INTEGER NOT NULL DEFAULT 1,
    head INTEGER NOT NULL DEFAULT 1,
    next INTEGER NOT NULL DEFAULT 1,
    head_us INTEGER NOT NULL DEFAULT 0,
    tail_us INTEGER NOT NULL DEFAULT 0,
    paused_us INTEGER NOT NULL DEFAULT 0,
    rule_limit INTEGER NOT NULL DEFAULT 0,
    rule_us INTEGER NOT NULL DEFAULT 0,
    rule_until_us INTEGER NOT NULL DEFAULT 0,
    other_rules TEXT NOT NULL DEFAULT '',
    spilled INTEGER NOT NULL DEFAULT 1,
    recent BLOB NOT NULL DEFAULT x''
) STRICT;
CREATE TABLE limit_rows (
    bucket_id INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    expires_us INTEGER NOT NULL,
    units INTEGER NOT NULL,
    PRIMARY KEY (bucket_id, seq)
) STRICT, WITHOUT ROWID;
CREATE TABLE limit_line (
    bucket_id INTEGER NOT NULL,
    ticket INTEGER NOT NULL,
    owner TEXT NOT NULL,
    charge INTEGER NOT NULL,
    lines INTEGER NOT NULL,
    PRIMARY KEY (bucket_id, ticket)
) STRICT, WITHOUT ROWID;
CREATE INDEX limit_line_by_owner ON limit_line (owner);
CREATE TABLE limit_owners (owner TEXT PRIMARY KEY, until_us INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE limit_counter (one INTEGER PRIMARY KEY CHECK (one = 1), ticket INTEGER NOT NULL) STRICT;
INSERT INTO limit_counter VALUES (1, 0);
