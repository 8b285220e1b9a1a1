-- Insert a job like another one that is not gone, with no attempt yet, no key and no past.
INSERT INTO durable_job (
    id, root_id, name, queue_name, requires, priority, args, kwargs, metadata, options,
    max_attempts, enqueued_at, run_after, due_at, concurrency_key, forked_from
)
SELECT
    %(id)s::uuid, %(id)s::uuid, j.name, j.queue_name, j.requires, j.priority,
    COALESCE(%(args)s, j.args), COALESCE(%(kwargs)s, j.kwargs), j.metadata,
    j.options - 'dropped',
    j.max_attempts, v.now, v.now, v.now, j.concurrency_key, j.id
FROM durable_job AS j
CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
WHERE j.id = %(old)s AND NOT (
-- include: gone
)
RETURNING queue_name
