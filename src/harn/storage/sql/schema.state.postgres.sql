-- version: 1
CREATE TABLE state_keys (
    space text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    is_deleted bigint NOT NULL,
    entry bigint NOT NULL,
    value bytea,
    PRIMARY KEY (space, key)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX state_live ON state_keys (space, key) WHERE is_deleted = 0;
