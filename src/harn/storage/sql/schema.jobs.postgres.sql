-- version: 1
CREATE TABLE queues (
    queue_id bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    dimension text COLLATE "C" NOT NULL DEFAULT 'tenant',
    cap bigint NOT NULL DEFAULT 0,
    policy text COLLATE "C",
    other_policy text COLLATE "C",
    policy_at bigint NOT NULL DEFAULT 0,
    round bigint NOT NULL DEFAULT 0,
    last_key text COLLATE "C" NOT NULL DEFAULT '',
    promoted bigint NOT NULL DEFAULT 0,
    promotions bigint NOT NULL DEFAULT 0,
    deferrals bigint NOT NULL DEFAULT 0,
    dropped_selected bigint NOT NULL DEFAULT 0,
    dropped_deferred bigint NOT NULL DEFAULT 0,
    alarm bigint,
    acked bigint NOT NULL DEFAULT 0,
    purged bigint NOT NULL DEFAULT 0,
    dead bigint NOT NULL DEFAULT 0,
    responses bigint NOT NULL DEFAULT 0,
    ages text COLLATE "C" NOT NULL DEFAULT ''
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE TABLE shares (
    queue_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    ready bigint NOT NULL DEFAULT 0,
    scheduled bigint NOT NULL DEFAULT 0,
    in_flight bigint NOT NULL DEFAULT 0,
    turn bigint,
    round bigint NOT NULL DEFAULT 0,
    credit bigint NOT NULL DEFAULT 0,
    oldest_at bigint,
    selected bigint NOT NULL DEFAULT 0,
    promoted bigint NOT NULL DEFAULT 0,
    deferred bigint NOT NULL DEFAULT 0,
    deferred_from bigint NOT NULL DEFAULT 0,
    idle_at bigint,
    PRIMARY KEY (queue_id, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX shares_in_turn ON shares (queue_id, turn, key) WHERE turn IS NOT NULL;
CREATE INDEX shares_by_age ON shares (queue_id, oldest_at, key) WHERE turn IS NOT NULL;
CREATE INDEX shares_idle ON shares (queue_id, idle_at) WHERE idle_at IS NOT NULL;
CREATE TABLE jobs (
    queue_id bigint NOT NULL,
    id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    state smallint NOT NULL,
    enqueued_at bigint NOT NULL,
    wake_at bigint,
    attempts bigint NOT NULL DEFAULT 0,
    max_attempts bigint NOT NULL,
    epoch bigint NOT NULL DEFAULT 0,
    claim_id text COLLATE "C",
    held smallint NOT NULL DEFAULT 0,
    consumer text COLLATE "C",
    claimed_at bigint,
    claim_round bigint,
    settled_at bigint,
    tenant_id text COLLATE "C",
    binding_key text COLLATE "C",
    trigger_id text COLLATE "C",
    history text COLLATE "C",
    PRIMARY KEY (queue_id, id)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX jobs_of_key ON jobs (queue_id, key, priority, id) WHERE state = 0;
CREATE INDEX jobs_ready ON jobs (queue_id, priority, id) WHERE state = 0;
CREATE INDEX jobs_to_wake ON jobs (queue_id, wake_at) WHERE wake_at IS NOT NULL;
CREATE TABLE job_dedupe (
    queue_id bigint NOT NULL,
    tenant_id text COLLATE "C" NOT NULL,
    dedupe_key text COLLATE "C" NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (queue_id, tenant_id, dedupe_key)
);
CREATE TABLE queue_triggers (
    queue_id bigint NOT NULL,
    trigger_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue_id, trigger_id)
);
-- version: 2
-- A statement uses this index only if it says `id > 0`. Without that condition, the planner might read a whole queue to
-- find the jobs of one key.
DROP INDEX jobs_ready;
CREATE INDEX jobs_ready ON jobs (queue_id, priority, id) WHERE state = 0 AND id > 0;
CREATE INDEX job_dedupe_by_job ON job_dedupe (queue_id, job_id);
-- version: 3
ALTER TABLE queues ADD COLUMN cancelled bigint NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN paused text COLLATE "C";
ALTER TABLE shares ADD COLUMN parked bigint NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN function text COLLATE "C";
ALTER TABLE jobs ADD COLUMN lease text COLLATE "C";
ALTER TABLE jobs ADD COLUMN response bigint;
-- Separate indexes for claims and scheduled jobs, so that jobs in flight are found without reading scheduled ones.
DROP INDEX jobs_to_wake;
CREATE INDEX jobs_scheduled ON jobs (queue_id, wake_at) WHERE state = 1;
CREATE INDEX jobs_in_flight ON jobs (queue_id, wake_at) WHERE state IN (2, 3);
CREATE INDEX jobs_by_state ON jobs (queue_id, state, id) WHERE state NOT IN (0, 2, 3);
CREATE INDEX jobs_by_tenant ON jobs (queue_id, tenant_id, state, id) WHERE tenant_id IS NOT NULL AND state NOT IN (0, 2, 3);
-- version: 4
ALTER TABLE queues ADD COLUMN expired bigint NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN retried bigint NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN handled text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN trimmed bigint NOT NULL DEFAULT 0;
-- version: 5
-- Fair share by cost. Costs and credits are counted in millionths where a queue charges cost; a cost of null is 1.
ALTER TABLE queues ADD COLUMN charge text COLLATE "C" NOT NULL DEFAULT 'jobs';
ALTER TABLE shares ADD COLUMN refill bigint NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cost bigint;
ALTER TABLE jobs ADD COLUMN charged bigint;
-- version: 6
-- The tree of a queue whose keys are paths: a row for each node and each leaf.
ALTER TABLE queues ADD COLUMN hierarchy text COLLATE "C" NOT NULL DEFAULT '';
CREATE TABLE share_nodes (
    queue_id bigint NOT NULL,
    key text COLLATE "C" NOT NULL,
    parent text COLLATE "C" NOT NULL,
    ready bigint NOT NULL,
    in_flight bigint NOT NULL,
    turn bigint,
    round bigint NOT NULL,
    credit bigint NOT NULL,
    refill bigint NOT NULL,
    idle_at bigint,
    inner_round bigint NOT NULL,
    PRIMARY KEY (queue_id, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX share_nodes_in_turn ON share_nodes (queue_id, parent, turn, key) WHERE turn IS NOT NULL;
CREATE INDEX share_nodes_idle ON share_nodes (queue_id, idle_at) WHERE idle_at IS NOT NULL;
-- version: 7
-- A claim and an ack each enter a job's key again, because they change columns of other indexes. Pages of the primary key that
-- are filled by half have room for that; full ones are searched for dead entries and split again and again.
ALTER INDEX jobs_pkey SET (fillfactor = 50);
