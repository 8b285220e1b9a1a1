-- Insert jobs without keys that share their options. Nothing can be in their way, and all are due at
-- one moment: that is all that comes back.
WITH moment AS MATERIALIZED (
    SELECT
        statement_timestamp() + %(offset)s::interval AS now,
        COALESCE(
            %(run_after)s::timestamptz,
            statement_timestamp() + %(offset)s::interval + %(delay)s::interval
        ) AS due
),
made AS (
    INSERT INTO durable_job (
        id, root_id, name, queue_name, requires, priority, args, kwargs, metadata, options,
        max_attempts, enqueued_at, run_after, due_at, concurrency_key
    )
    SELECT
        c.id, c.id, %(name)s, %(queue_name)s, %(requires)s, %(priority)s, c.args, c.kwargs,
        %(metadata)s::jsonb, %(options)s::jsonb, %(max_attempts)s, moment.now, moment.due, moment.due,
        c.concurrency_key
    FROM unnest(
        %(ids)s::uuid[], %(args)s::text[], %(kwargs)s::text[], %(concurrency_keys)s::text[]
    ) AS c (id, args, kwargs, concurrency_key)
    CROSS JOIN moment
)
SELECT now, due FROM moment
