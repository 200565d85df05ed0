-- version: 1
CREATE TABLE topics (
    topic_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    head INTEGER NOT NULL,
    largest INTEGER NOT NULL,
    newest_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    payload BLOB NOT NULL,
    headers BLOB NOT NULL,
    occurred_at_ms INTEGER NOT NULL,
    UNIQUE (topic_id, id)
) STRICT;
CREATE TABLE cursors (
    topic TEXT NOT NULL,
    consumer TEXT NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (topic, consumer)
) STRICT, WITHOUT ROWID;
CREATE TABLE store_clock (one INTEGER PRIMARY KEY CHECK (one = 1), ms INTEGER NOT NULL) STRICT;
