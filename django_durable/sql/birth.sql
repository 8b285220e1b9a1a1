-- Insert children, if the claim of their parent stands, and as long as it does, and nothing of it
-- was cancelled. One whose idempotency key is taken is not born.
INSERT INTO durable_job (
    id, root_id, parent_id, depth, awaited, name, queue_name, requires, priority, args, kwargs,
    metadata, options, max_attempts, enqueued_at, run_after, due_at, idempotency_key, concurrency_key
)
SELECT
    c.id, p.root_id, p.id, p.depth + 1, TRUE, c.name, c.queue_name, c.requires, c.priority, c.args,
    c.kwargs, c.metadata, c.options, c.max_attempts, v.now, v.due, v.due, c.idempotency_key,
    c.concurrency_key
FROM (
    SELECT id, root_id, depth
    FROM durable_job
    WHERE
        id = %(parent)s AND epoch = %(epoch)s AND status = 'RUNNING'
        AND cancel_requested_at IS NULL
    FOR SHARE
) AS p
CROSS JOIN jsonb_to_recordset(%(children)s::jsonb) AS c (
    id uuid, name text, queue_name text, requires text, priority int, args text, kwargs text,
    metadata jsonb, options jsonb, max_attempts int, run_after timestamptz, delay float8,
    idempotency_key text, concurrency_key text
)
CROSS JOIN LATERAL (
    SELECT
        statement_timestamp() + %(offset)s::interval AS now,
        COALESCE(
            c.run_after, statement_timestamp() + %(offset)s::interval + make_interval(secs => c.delay)
        ) AS due
) AS v
ORDER BY c.idempotency_key, c.id
ON CONFLICT (name, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
RETURNING id
