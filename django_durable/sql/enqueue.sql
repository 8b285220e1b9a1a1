-- Insert one job; no row comes back when its key is taken.
INSERT INTO durable_job (
    id, root_id, name, queue_name, requires, priority, args, kwargs, metadata, options,
    max_attempts, enqueued_at, run_after, due_at, idempotency_key, concurrency_key, delivery_id
)
SELECT
    v.id, v.id, %(name)s, %(queue_name)s, %(requires)s, %(priority)s, %(args)s, %(kwargs)s,
    %(metadata)s::jsonb, %(options)s::jsonb, %(max_attempts)s, v.now, v.due, v.due,
    %(idempotency_key)s, %(concurrency_key)s, %(delivery_id)s::uuid
FROM (
    SELECT
        %(id)s::uuid AS id,
        statement_timestamp() + %(offset)s::interval AS now,
        COALESCE(
            %(run_after)s::timestamptz,
            statement_timestamp() + %(offset)s::interval + %(delay)s::interval
        ) AS due
) AS v
ON CONFLICT (name, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING enqueued_at, run_after
