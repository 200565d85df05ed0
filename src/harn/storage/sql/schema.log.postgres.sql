-- version: 1
CREATE TABLE topics (
    topic_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    head bigint NOT NULL,
    largest bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE events (
    seq bigint GENERATED ALWAYS AS IDENTITY,
    topic_id bigint NOT NULL,
    id bigint NOT NULL,
    kind text NOT NULL,
    payload bytea NOT NULL,
    headers bytea NOT NULL,
    occurred_at_ms bigint NOT NULL,
    PRIMARY KEY (topic_id, id)
);
CREATE TABLE cursors (
    topic text COLLATE "C" NOT NULL,
    consumer text COLLATE "C" NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (topic, consumer)
);
CREATE TABLE producers (
    producer text COLLATE "C" PRIMARY KEY,
    seq bigint NOT NULL,
    seen_ms bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
