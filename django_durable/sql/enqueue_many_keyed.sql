-- Insert jobs that share their options; the ids of those whose key was free come back.
-- The order of the keys is the lock order of two callers with the same keys.
WITH made AS (
    INSERT INTO durable_job (
        id, root_id, name, queue_name, requires, priority, args, kwargs, metadata, options,
        max_attempts, enqueued_at, run_after, due_at, idempotency_key, concurrency_key
    )
    SELECT
        c.id, c.id, %(name)s, %(queue_name)s, %(requires)s, %(priority)s, c.args, c.kwargs,
        %(metadata)s::jsonb, %(options)s::jsonb, %(max_attempts)s, v.now, v.due, v.due,
        c.idempotency_key, c.concurrency_key
    FROM unnest(
        %(ids)s::uuid[], %(args)s::text[], %(kwargs)s::text[], %(keys)s::text[],
        %(concurrency_keys)s::text[]
    ) AS c (id, args, kwargs, idempotency_key, concurrency_key)
    CROSS JOIN (
        SELECT
            statement_timestamp() + %(offset)s::interval AS now,
            COALESCE(
                %(run_after)s::timestamptz,
                statement_timestamp() + %(offset)s::interval + %(delay)s::interval
            ) AS due
    ) AS v
    ORDER BY c.idempotency_key, c.id
    ON CONFLICT (name, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING id, enqueued_at, run_after
)
SELECT
    min(enqueued_at), min(run_after), array_agg(id)
FROM made
