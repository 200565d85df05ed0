-- version: 1
CREATE TABLE job_steps (
    queue_id bigint NOT NULL,
    job_id bigint NOT NULL,
    entry bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    call text COLLATE "C" NOT NULL,
    started_at bigint NOT NULL,
    duration_ms bigint NOT NULL,
    PRIMARY KEY (queue_id, job_id, entry)
);
