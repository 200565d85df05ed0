-- version: 1
CREATE TABLE state_keys (
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    version INTEGER NOT NULL,
    is_deleted INTEGER NOT NULL,
    entry INTEGER NOT NULL,
    value BLOB,
    PRIMARY KEY (space, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX state_live ON state_keys (space, key) WHERE is_deleted = 0;
