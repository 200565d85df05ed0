-- version: 1
-- docs/design/outbox.md says why it is made this way.
CREATE TABLE job_tickets (
    queue_id bigint NOT NULL,
    ticket text COLLATE "C" NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (queue_id, ticket)
);
CREATE INDEX job_tickets_by_job ON job_tickets (queue_id, job_id);
CREATE TABLE outbox_store (id text COLLATE "C" NOT NULL);
INSERT INTO outbox_store VALUES (gen_random_uuid()::text);
-- The jobs of transactions that called `enqueue`, until an operation moves them into their queue.
CREATE TABLE outbox (
    queue text COLLATE "C" NOT NULL,
    xact text COLLATE "C" NOT NULL,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    ticket text COLLATE "C" NOT NULL,
    body text NOT NULL,
    headers text NOT NULL,
    priority smallint NOT NULL CHECK (priority BETWEEN 0 AND 2),
    tenant_id text COLLATE "C" CHECK (length(tenant_id) BETWEEN 1 AND 256 AND tenant_id !~ '[\u0001-\u001F]'),
    binding_key text COLLATE "C" CHECK (length(binding_key) BETWEEN 1 AND 256 AND binding_key !~ '[\u0001-\u001F]'),
    trigger_id text COLLATE "C" CHECK (length(trigger_id) BETWEEN 1 AND 256 AND trigger_id !~ '[\u0001-\u001F]'),
    dedupe_key text COLLATE "C" CHECK (length(dedupe_key) BETWEEN 1 AND 512),
    max_attempts bigint NOT NULL CHECK (max_attempts BETWEEN 0 AND 2147483647),
    not_before_ms bigint,
    delay_ms bigint,
    function text COLLATE "C",
    PRIMARY KEY (queue, xact, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX outbox_by_ticket ON outbox (ticket);
-- One row for each transaction and queue; it gets its place when the transaction commits.
CREATE TABLE outbox_commits (
    queue text COLLATE "C" NOT NULL,
    xact text COLLATE "C" NOT NULL,
    place bigint,
    PRIMARY KEY (queue, xact)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
CREATE INDEX outbox_in_order ON outbox_commits (queue, place);
CREATE SEQUENCE outbox_places;
-- The functions keep this path, with a caller's temporary tables at its end.
SELECT set_config('search_path', current_setting('search_path') || ', pg_temp', true);
CREATE FUNCTION outbox_take_place() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $body$
BEGIN
    UPDATE outbox_commits SET place = nextval('outbox_places') WHERE queue = NEW.queue AND xact = NEW.xact;
    RETURN NULL;
END
$body$;
CREATE CONSTRAINT TRIGGER outbox_commit AFTER INSERT ON outbox_commits DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION outbox_take_place();
-- Put a job that was checked and encoded before into the outbox; `store` is where the caller means it to go.
CREATE FUNCTION outbox_add(
    store text, queue text, body text, headers text, priority smallint, tenant_id text, binding_key text, trigger_id text,
    dedupe_key text, max_attempts bigint, not_before_ms bigint, delay_ms bigint, function text
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $body$
#variable_conflict use_variable
DECLARE
    ticket text := 'ticket_' || replace(gen_random_uuid()::text, '-', '');
    xact text := pg_current_xact_id()::text || '@' || extract(epoch FROM now())::text;
BEGIN
    IF store IS NOT NULL AND store <> (SELECT s.id FROM outbox_store AS s) THEN
        RAISE EXCEPTION 'the connection leads to another store than the runtime''s' USING ERRCODE = 'HRN01';
    END IF;
    INSERT INTO outbox_commits (queue, xact) VALUES (queue, xact) ON CONFLICT DO NOTHING;
    INSERT INTO outbox (queue, xact, ticket, body, headers, priority, tenant_id, binding_key, trigger_id, dedupe_key, max_attempts,
        not_before_ms, delay_ms, function)
    VALUES (queue, xact, ticket, body, headers, priority, tenant_id, binding_key, trigger_id, dedupe_key, max_attempts,
        not_before_ms, delay_ms, function);
    -- The topic of a queue with a plain name; for another one every waiter looks.
    PERFORM pg_notify('harn_' || current_schema(), CASE WHEN queue ~ '^(?!--)[A-Za-z0-9._-]+$' THEN 'worker.' || queue ELSE '' END);
    RETURN ticket;
END
$body$;
-- Refuse a value, in the words of Python's InvalidOption.
CREATE FUNCTION outbox_refuse(option text, value text, accepted text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
BEGIN
    RAISE EXCEPTION '%', option || '=' || CASE WHEN value IS NULL THEN 'NULL' WHEN length(value) > 117
        THEN quote_literal(left(value, 117) || '...') ELSE quote_literal(value) END || ' is not accepted: ' || accepted
        USING ERRCODE = 'invalid_parameter_value';
END
$body$;
-- Check a tenant or another key; NULL is none.
CREATE FUNCTION outbox_check_key(option text, value text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
BEGIN
    IF length(value) NOT BETWEEN 1 AND 256 OR value ~ '[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u1680\u180E\u2000-\u200F\u2028-\u202F\u205F-\u2064\u2066-\u206F\u3000\uE000-\uF8FF\uFEFF\uFFF9-\uFFFB\U000110BD\U000110CD\U00013430-\U00013438\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F\U000F0000-\U000FFFFD\U00100000-\U0010FFFD]' THEN
        PERFORM outbox_refuse(option, value, '1 to 256 printable characters, or NULL');
    END IF;
END
$body$;
CREATE FUNCTION outbox_check_queue(queue text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
BEGIN
    IF queue IS NULL OR length(queue) NOT BETWEEN 1 AND 128 OR queue ~ '[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u1680\u180E\u2000-\u200F\u2028-\u202F\u205F-\u2064\u2066-\u206F\u3000\uE000-\uF8FF\uFEFF\uFFF9-\uFFFB\U000110BD\U000110CD\U00013430-\U00013438\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F\U000F0000-\U000FFFFD\U00100000-\U0010FFFD]' THEN
        PERFORM outbox_refuse('queue', queue, '1 to 128 printable characters');
    ELSIF queue <> btrim(queue) THEN
        PERFORM outbox_refuse('queue', queue, 'a name without white space at its ends');
    ELSIF queue = 'queues' OR queue ~ '\.(claims|responses)$' THEN
        PERFORM outbox_refuse('queue', queue, 'a name that is not ''queues'' and does not end in .claims or .responses');
    END IF;
END
$body$;
CREATE FUNCTION outbox_check_json(option text, value jsonb, most integer) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
DECLARE
    size integer := octet_length(value::text);
BEGIN
    IF size > most THEN
        PERFORM outbox_refuse(option, size || ' bytes', 'JSON of at most ' || most || ' bytes');
    ELSIF size > 400 AND jsonb_path_exists(value, 'strict $.**{200} ? (@.type() == "object" || @.type() == "array")') THEN
        PERFORM outbox_refuse(option, left(value::text, 80), 'JSON of at most 200 levels');
    ELSIF size > 4300 AND jsonb_path_exists(value, 'strict $.** ? (@.type() == "number" && (@ >= 1e4299 || @ <= -1e4299))') THEN
        PERFORM outbox_refuse(option, left(value::text, 80), 'JSON with numbers of fewer than 4300 digits');
    END IF;
END
$body$;
CREATE FUNCTION enqueue(
    queue text,
    payload jsonb,
    trigger_id text DEFAULT NULL,
    priority text DEFAULT 'normal',
    tenant_id text DEFAULT NULL,
    binding_key text DEFAULT NULL,
    headers jsonb DEFAULT NULL,
    dedupe_key text DEFAULT NULL,
    not_before timestamptz DEFAULT NULL,
    max_attempts integer DEFAULT 5,
    cost double precision DEFAULT 1
) RETURNS text LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
#variable_conflict use_variable
DECLARE
    rank smallint := array_position(ARRAY['high', 'normal', 'low'], priority) - 1;
    not_before_ms bigint;
    body text;
    about jsonb;
BEGIN
    payload := coalesce(payload, 'null');
    headers := CASE WHEN headers <> '{}' AND headers <> 'null' THEN headers END;
    PERFORM outbox_check_queue(queue), outbox_check_key('trigger_id', trigger_id), outbox_check_key('tenant_id', tenant_id),
        outbox_check_key('binding_key', binding_key), outbox_check_json('payload', payload, 10485760);
    IF rank IS NULL THEN
        PERFORM outbox_refuse('priority', priority, 'high, normal or low');
    ELSIF length(dedupe_key) NOT BETWEEN 1 AND 512 OR dedupe_key ~ '[\u0001-\u001F\u007F-\u009F\u061C\u200E-\u200F\u2028-\u202E\u2066-\u2069]' THEN
        PERFORM outbox_refuse('dedupe_key', dedupe_key, '1 to 512 characters, none of them a control');
    ELSIF max_attempts IS NULL OR max_attempts < 0 THEN
        PERFORM outbox_refuse('max_attempts', max_attempts::text, 'a whole number; 0 means forever');
    ELSIF cost IS NULL OR NOT (cost >= 0 AND cost < 'infinity') THEN
        PERFORM outbox_refuse('cost', cost::text, 'a finite number, 0 or more');
    ELSIF headers IS NOT NULL AND jsonb_typeof(headers) <> 'object' THEN
        PERFORM outbox_refuse('headers', headers::text, 'a JSON object, or NULL');
    ELSIF not_before IN ('infinity', '-infinity') THEN
        PERFORM outbox_refuse('not_before', not_before::text, 'a time that comes, or NULL');
    END IF;
    PERFORM outbox_check_json('headers', headers, 65536);
    not_before_ms := round(extract(epoch FROM not_before) * 1000);
    body := jsonb_build_object('queue', queue, 'trigger_id', trigger_id, 'binding_key', binding_key, 'binding_version', NULL,
        'event', payload, 'replay_of_event_id', NULL, 'priority', priority, 'max_attempts', max_attempts, 'tenant_id', tenant_id,
        'dedupe_key', dedupe_key, 'not_before_ms', not_before_ms, 'delay_ms', NULL, 'headers', headers, 'function', NULL,
        'cost', cost)::text;
    IF octet_length(body) > 10485760 THEN
        PERFORM outbox_refuse('payload', octet_length(body) || ' bytes', 'at most 10485760 bytes');
    END IF;
    about := jsonb_build_object('queue', queue, 'priority', priority, 'trigger_id', trigger_id, 'binding_key', binding_key,
        'event_id', CASE WHEN jsonb_typeof(payload -> 'id') = 'string' THEN payload -> 'id' END);
    RETURN outbox_add(NULL, queue, body, jsonb_strip_nulls(about)::text, rank, tenant_id, binding_key, trigger_id, dedupe_key,
        max_attempts, not_before_ms, NULL, NULL);
END
$body$;
COMMENT ON FUNCTION enqueue IS 'Put a job into a worker queue with the commit of this transaction; returns its ticket.';
-- version: 2
-- The functions keep this path, with a caller's temporary tables at its end.
SELECT set_config('search_path', replace(current_setting('search_path'), ', pg_temp', '') || ', pg_temp', true);
-- A pool's queue is the pool's alone.
CREATE OR REPLACE FUNCTION outbox_check_queue(queue text) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
BEGIN
    IF queue IS NULL OR length(queue) NOT BETWEEN 1 AND 128 OR queue ~ '[\u0001-\u001F\u007F-\u00A0\u00AD\u0600-\u0605\u061C\u06DD\u070F\u0890-\u0891\u08E2\u1680\u180E\u2000-\u200F\u2028-\u202F\u205F-\u2064\u2066-\u206F\u3000\uE000-\uF8FF\uFEFF\uFFF9-\uFFFB\U000110BD\U000110CD\U00013430-\U00013438\U0001BCA0-\U0001BCA3\U0001D173-\U0001D17A\U000E0001\U000E0020-\U000E007F\U000F0000-\U000FFFFD\U00100000-\U0010FFFD]' THEN
        PERFORM outbox_refuse('queue', queue, '1 to 128 printable characters');
    ELSIF queue <> btrim(queue) THEN
        PERFORM outbox_refuse('queue', queue, 'a name without white space at its ends');
    ELSIF queue = 'queues' OR queue ~ '\.(claims|responses)$' THEN
        PERFORM outbox_refuse('queue', queue, 'a name that is not ''queues'' and does not end in .claims or .responses');
    ELSIF queue ~ '^pool_(tenant|org)_[0-9a-f]{32}$' THEN
        PERFORM outbox_refuse('queue', queue, 'a name that is no pool''s id; submit to the pool');
    END IF;
END
$body$;
-- Numbers that no reader could hold are refused, too: with a fraction they are read as floats.
CREATE OR REPLACE FUNCTION outbox_check_json(option text, value jsonb, most integer) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $body$
DECLARE
    size integer := octet_length(value::text);
BEGIN
    IF size > most THEN
        PERFORM outbox_refuse(option, size || ' bytes', 'JSON of at most ' || most || ' bytes');
    ELSIF size > 400 AND jsonb_path_exists(value, 'strict $.**{200} ? (@.type() == "object" || @.type() == "array")') THEN
        PERFORM outbox_refuse(option, left(value::text, 80), 'JSON of at most 200 levels');
    ELSIF size > 4300 AND jsonb_path_exists(value, 'strict $.** ? (@.type() == "number" && (@ >= 1e4299 || @ <= -1e4299))') THEN
        PERFORM outbox_refuse(option, left(value::text, 80), 'JSON with numbers of fewer than 4300 digits');
    ELSIF size > 308 AND EXISTS (
        SELECT 1 FROM jsonb_path_query(value, 'strict $.** ? (@.type() == "number" && (@ >= 1e308 || @ <= -1e308))') AS n
        WHERE n::text LIKE '%.%' AND abs(n::text::numeric) >= 1.797693134862315807e308
    ) THEN
        PERFORM outbox_refuse(option, left(value::text, 80), 'JSON whose numbers with a fraction are below 1.8e308; send text');
    END IF;
END
$body$;
-- Put a job into the outbox; what is not a job in a queue is refused, whichever role calls.
CREATE OR REPLACE FUNCTION outbox_add(
    store text, queue text, body text, headers text, priority smallint, tenant_id text, binding_key text, trigger_id text,
    dedupe_key text, max_attempts bigint, not_before_ms bigint, delay_ms bigint, function text
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $body$
#variable_conflict use_variable
DECLARE
    ticket text := 'ticket_' || replace(gen_random_uuid()::text, '-', '');
    xact text := pg_current_xact_id()::text || '@' || extract(epoch FROM now())::text;
BEGIN
    IF store IS NOT NULL AND store <> (SELECT s.id FROM outbox_store AS s) THEN
        RAISE EXCEPTION 'the connection leads to another store than the runtime''s' USING ERRCODE = 'HRN01';
    END IF;
    -- Every role that may use the schema can call this function: what cannot be read would stop the queue.
    PERFORM outbox_check_queue(queue);
    IF json_typeof(body::json) IS DISTINCT FROM 'object' OR json_typeof(headers::json) IS DISTINCT FROM 'object' THEN
        PERFORM outbox_refuse('body', body, 'a JSON object; call enqueue');
    END IF;
    INSERT INTO outbox_commits (queue, xact) VALUES (queue, xact) ON CONFLICT DO NOTHING;
    INSERT INTO outbox (queue, xact, ticket, body, headers, priority, tenant_id, binding_key, trigger_id, dedupe_key, max_attempts,
        not_before_ms, delay_ms, function)
    VALUES (queue, xact, ticket, body, headers, priority, tenant_id, binding_key, trigger_id, dedupe_key, max_attempts,
        not_before_ms, delay_ms, function);
    -- The topic of a queue with a plain name; for another one every waiter looks.
    PERFORM pg_notify('harn_' || current_schema(), CASE WHEN queue ~ '^(?!--)[A-Za-z0-9._-]+$' THEN 'worker.' || queue ELSE '' END);
    RETURN ticket;
END
$body$;
