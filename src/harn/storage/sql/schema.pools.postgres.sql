-- version: 1
CREATE TABLE pools (
    queue_id bigint PRIMARY KEY,
    settings text COLLATE "C" NOT NULL
);
