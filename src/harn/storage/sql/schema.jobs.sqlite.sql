-- version: 1
CREATE TABLE queues (
    queue_id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    dimension TEXT NOT NULL DEFAULT 'tenant',
    cap INTEGER NOT NULL DEFAULT 0,
    policy TEXT,
    other_policy TEXT,
    policy_at INTEGER NOT NULL DEFAULT 0,
    round INTEGER NOT NULL DEFAULT 0,
    last_key TEXT NOT NULL DEFAULT '',
    promoted INTEGER NOT NULL DEFAULT 0,
    promotions INTEGER NOT NULL DEFAULT 0,
    deferrals INTEGER NOT NULL DEFAULT 0,
    dropped_selected INTEGER NOT NULL DEFAULT 0,
    dropped_deferred INTEGER NOT NULL DEFAULT 0,
    alarm INTEGER,
    acked INTEGER NOT NULL DEFAULT 0,
    purged INTEGER NOT NULL DEFAULT 0,
    dead INTEGER NOT NULL DEFAULT 0,
    responses INTEGER NOT NULL DEFAULT 0,
    ages TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE TABLE shares (
    queue_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    ready INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    in_flight INTEGER NOT NULL DEFAULT 0,
    turn INTEGER,
    round INTEGER NOT NULL DEFAULT 0,
    credit INTEGER NOT NULL DEFAULT 0,
    oldest_at INTEGER,
    selected INTEGER NOT NULL DEFAULT 0,
    promoted INTEGER NOT NULL DEFAULT 0,
    deferred INTEGER NOT NULL DEFAULT 0,
    deferred_from INTEGER NOT NULL DEFAULT 0,
    idle_at INTEGER,
    PRIMARY KEY (queue_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX shares_in_turn ON shares (queue_id, turn, key) WHERE turn IS NOT NULL;
CREATE INDEX shares_by_age ON shares (queue_id, oldest_at, key) WHERE turn IS NOT NULL;
CREATE INDEX shares_idle ON shares (queue_id, idle_at) WHERE idle_at IS NOT NULL;
CREATE TABLE jobs (
    queue_id INTEGER NOT NULL,
    id INTEGER NOT NULL,
    key TEXT NOT NULL,
    priority INTEGER NOT NULL,
    state INTEGER NOT NULL,
    enqueued_at INTEGER NOT NULL,
    wake_at INTEGER,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    epoch INTEGER NOT NULL DEFAULT 0,
    claim_id TEXT,
    held INTEGER NOT NULL DEFAULT 0,
    consumer TEXT,
    claimed_at INTEGER,
    claim_round INTEGER,
    settled_at INTEGER,
    tenant_id TEXT,
    binding_key TEXT,
    trigger_id TEXT,
    history TEXT,
    PRIMARY KEY (queue_id, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX jobs_of_key ON jobs (queue_id, key, priority, id) WHERE state = 0;
CREATE INDEX jobs_ready ON jobs (queue_id, priority, id) WHERE state = 0;
CREATE INDEX jobs_to_wake ON jobs (queue_id, wake_at) WHERE wake_at IS NOT NULL;
CREATE TABLE job_dedupe (
    queue_id INTEGER NOT NULL,
    tenant_id TEXT NOT NULL,
    dedupe_key TEXT NOT NULL,
    job_id INTEGER NOT NULL,
    PRIMARY KEY (queue_id, tenant_id, dedupe_key)
) STRICT, WITHOUT ROWID;
CREATE TABLE queue_triggers (
    queue_id INTEGER NOT NULL,
    trigger_id TEXT NOT NULL,
    PRIMARY KEY (queue_id, trigger_id)
) STRICT, WITHOUT ROWID;
-- version: 2
CREATE INDEX job_dedupe_by_job ON job_dedupe (queue_id, job_id);
-- version: 3
ALTER TABLE queues ADD COLUMN cancelled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN paused TEXT;
ALTER TABLE shares ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN function TEXT;
ALTER TABLE jobs ADD COLUMN lease TEXT;
ALTER TABLE jobs ADD COLUMN response INTEGER;
-- Separate indexes for claims and scheduled jobs, so that jobs in flight are found without reading scheduled ones.
DROP INDEX jobs_to_wake;
CREATE INDEX jobs_scheduled ON jobs (queue_id, wake_at) WHERE state = 1;
CREATE INDEX jobs_in_flight ON jobs (queue_id, wake_at) WHERE state IN (2, 3);
CREATE INDEX jobs_by_state ON jobs (queue_id, state, id) WHERE state NOT IN (0, 2, 3);
CREATE INDEX jobs_by_tenant ON jobs (queue_id, tenant_id, state, id) WHERE tenant_id IS NOT NULL AND state NOT IN (0, 2, 3);
-- version: 4
ALTER TABLE queues ADD COLUMN expired INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN retried INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN handled TEXT NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN trimmed INTEGER NOT NULL DEFAULT 0;
-- version: 5
-- The same jobs as before. SQLite makes a temporary table for a list of three, twice for each row that a statement writes.
DROP INDEX jobs_by_state;
DROP INDEX jobs_by_tenant;
CREATE INDEX jobs_by_state ON jobs (queue_id, state, id) WHERE state <> 0 AND state <> 2 AND state <> 3;
CREATE INDEX jobs_by_tenant ON jobs (queue_id, tenant_id, state, id) WHERE tenant_id IS NOT NULL AND state <> 0 AND state <> 2 AND state <> 3;
-- version: 6
-- Fair share by cost. Costs and credits are counted in millionths where a queue charges cost; a cost of null is 1.
ALTER TABLE queues ADD COLUMN charge TEXT NOT NULL DEFAULT 'jobs';
ALTER TABLE shares ADD COLUMN refill INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cost INTEGER;
ALTER TABLE jobs ADD COLUMN charged INTEGER;
-- version: 7
-- The tree of a queue whose keys are paths: a row for each node and each leaf.
ALTER TABLE queues ADD COLUMN hierarchy TEXT NOT NULL DEFAULT '';
CREATE TABLE share_nodes (
    queue_id INTEGER NOT NULL,
    key TEXT NOT NULL,
    parent TEXT NOT NULL,
    ready INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    turn INTEGER,
    round INTEGER NOT NULL,
    credit INTEGER NOT NULL,
    refill INTEGER NOT NULL,
    idle_at INTEGER,
    inner_round INTEGER NOT NULL,
    PRIMARY KEY (queue_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX share_nodes_in_turn ON share_nodes (queue_id, parent, turn, key) WHERE turn IS NOT NULL;
CREATE INDEX share_nodes_idle ON share_nodes (queue_id, idle_at) WHERE idle_at IS NOT NULL;
