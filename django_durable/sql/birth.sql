-- Insert a child, if the claim of its parent stands, and as long as it does, and nothing of it was
-- cancelled.
INSERT INTO durable_job (
    id, root_id, parent_id, depth, awaited, name, queue_name, requires, priority, args, kwargs,
    metadata, options, max_attempts, enqueued_at, run_after, due_at, idempotency_key, concurrency_key
)
SELECT
    %(id)s::uuid, p.root_id, p.id, p.depth + 1, TRUE, %(name)s, %(queue_name)s, %(requires)s,
    %(priority)s, %(args)s, %(kwargs)s, %(metadata)s::jsonb, %(options)s::jsonb, %(max_attempts)s,
    v.now, v.due, v.due, %(idempotency_key)s, %(concurrency_key)s
FROM durable_job AS p
CROSS JOIN (
    SELECT
        statement_timestamp() + %(offset)s::interval AS now,
        COALESCE(
            %(run_after)s::timestamptz,
            statement_timestamp() + %(offset)s::interval + %(delay)s::interval
        ) AS due
) AS v
WHERE
    p.id = %(parent)s AND p.epoch = %(epoch)s AND p.status = 'RUNNING'
    AND p.cancel_requested_at IS NULL
FOR SHARE OF p
RETURNING id
