-- Insert a job like another one, with no attempt yet, no key and no past.
INSERT INTO durable_job (
    id, root_id, name, queue_name, requires, priority, args, kwargs, metadata, options,
    max_attempts, enqueued_at, run_after, due_at, concurrency_key
)
SELECT
    %(id)s::uuid, %(id)s::uuid, d.name, d.queue_name, d.requires, d.priority,
    COALESCE(%(args)s, d.args), COALESCE(%(kwargs)s, d.kwargs), d.metadata, d.options,
    d.max_attempts, v.now, v.now, v.now, d.concurrency_key
FROM durable_job AS d
CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
WHERE d.id = %(old)s
RETURNING queue_name
