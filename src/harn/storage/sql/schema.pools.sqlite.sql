-- version: 1
CREATE TABLE pools (
    queue_id INTEGER PRIMARY KEY,
    settings TEXT NOT NULL
) STRICT;
