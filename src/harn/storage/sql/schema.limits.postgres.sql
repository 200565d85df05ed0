-- version: 1
CREATE TABLE limit_buckets (
    bucket_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text COLLATE "C" NOT NULL UNIQUE,
    live bigint NOT NULL DEFAULT 0,
    kept bigint NOT NULL DEFAULT 1,
    head bigint NOT NULL DEFAULT 1,
    next bigint NOT NULL DEFAULT 1,
    head_us bigint NOT NULL DEFAULT 0,
    tail_us bigint NOT NULL DEFAULT 0,
    paused_us bigint NOT NULL DEFAULT 0,
    rule_limit bigint NOT NULL DEFAULT 0,
    rule_us bigint NOT NULL DEFAULT 0,
    rule_until_us bigint NOT NULL DEFAULT 0,
    other_rules text NOT NULL DEFAULT '',
    spilled bigint NOT NULL DEFAULT 1,
    recent bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE limit_rows (
    bucket_id bigint NOT NULL,
    seq bigint NOT NULL,
    expires_us bigint NOT NULL,
    units bigint NOT NULL,
    PRIMARY KEY (bucket_id, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);
CREATE TABLE limit_line (
    bucket_id bigint NOT NULL,
    ticket bigint NOT NULL,
    owner text COLLATE "C" NOT NULL,
    charge bigint NOT NULL,
    lines bigint NOT NULL,
    PRIMARY KEY (bucket_id, ticket)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX limit_line_by_owner ON limit_line (owner);
CREATE TABLE limit_owners (owner text COLLATE "C" PRIMARY KEY, until_us bigint NOT NULL);
CREATE TABLE limit_counter (one integer PRIMARY KEY CHECK (one = 1), ticket bigint NOT NULL);
INSERT INTO limit_counter VALUES (1, 0);
