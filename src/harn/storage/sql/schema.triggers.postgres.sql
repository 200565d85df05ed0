-- version: 1
CREATE TABLE trigger_inbox (
    envelope bigint PRIMARY KEY,
    binding_id text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    due_ms bigint NOT NULL,
    taken bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX trigger_inbox_by_owner ON trigger_inbox (owner);
CREATE TABLE trigger_dedupe (
    scope text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    digest text COLLATE "C" NOT NULL,
    until_ms bigint NOT NULL,
    PRIMARY KEY (scope, key)
);
CREATE INDEX trigger_dedupe_by_end ON trigger_dedupe (until_ms);
CREATE TABLE trigger_cron (trigger_id text COLLATE "C" PRIMARY KEY, last_ms bigint NOT NULL);
CREATE TABLE trigger_owners (owner text COLLATE "C" PRIMARY KEY, until_ms bigint NOT NULL)
WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE trigger_marks (
    gate text COLLATE "C" NOT NULL,
    ticket bigint NOT NULL,
    owner text COLLATE "C" NOT NULL,
    rank bigint NOT NULL,
    held bigint NOT NULL,
    envelope bigint NOT NULL,
    at_ms bigint NOT NULL,
    PRIMARY KEY (gate, ticket)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE trigger_circuits (
    destination text COLLATE "C" PRIMARY KEY,
    failures bigint NOT NULL,
    open_until_ms bigint NOT NULL,
    probing_until_ms bigint NOT NULL
);
CREATE TABLE trigger_dead (
    id text COLLATE "C" PRIMARY KEY,
    entry bigint NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    binding_id text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    at_ms bigint NOT NULL
);
CREATE INDEX trigger_dead_by_state ON trigger_dead (state, entry);
