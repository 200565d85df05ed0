-- version: 1
CREATE TABLE trigger_inbox (
    envelope INTEGER PRIMARY KEY,
    binding_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    due_ms INTEGER NOT NULL,
    taken INTEGER NOT NULL
) STRICT;
CREATE INDEX trigger_inbox_by_owner ON trigger_inbox (owner);
CREATE TABLE trigger_dedupe (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    event_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (scope, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX trigger_dedupe_by_end ON trigger_dedupe (until_ms);
CREATE TABLE trigger_cron (trigger_id TEXT PRIMARY KEY, last_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE trigger_owners (owner TEXT PRIMARY KEY, until_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE trigger_marks (
    gate TEXT NOT NULL,
    ticket INTEGER NOT NULL,
    owner TEXT NOT NULL,
    rank INTEGER NOT NULL,
    held INTEGER NOT NULL,
    envelope INTEGER NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (gate, ticket)
) STRICT, WITHOUT ROWID;
CREATE TABLE trigger_circuits (
    destination TEXT PRIMARY KEY,
    failures INTEGER NOT NULL,
    open_until_ms INTEGER NOT NULL,
    probing_until_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE trigger_dead (
    id TEXT PRIMARY KEY,
    entry INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    binding_id TEXT NOT NULL,
    state TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX trigger_dead_by_state ON trigger_dead (state, entry);
