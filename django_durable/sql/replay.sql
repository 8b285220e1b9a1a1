-- Insert the replay of a dead job: its payload, options and key, and no attempt yet.
INSERT INTO durable_job (
    id, root_id, name, queue_name, requires, priority, args, kwargs, metadata, options,
    max_attempts, enqueued_at, run_after, due_at, idempotency_key, concurrency_key, delivery_id
)
SELECT
    %(id)s::uuid, %(id)s::uuid, d.name, d.queue_name, d.requires, d.priority,
    COALESCE(%(args)s, d.args), COALESCE(%(kwargs)s, d.kwargs), d.metadata, d.options,
    d.max_attempts, v.now, v.now + %(delay)s::interval, v.now + %(delay)s::interval,
    %(idempotency_key)s, d.concurrency_key, COALESCE(d.delivery_id, d.id)
FROM durable_job AS d
CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
WHERE d.id = %(dead)s
RETURNING name, queue_name
