-- Insert the jobs of ticks; one whose nominal time has its job already makes none.
INSERT INTO durable_job (
    id, root_id, name, queue_name, requires, priority, args, kwargs, metadata, options,
    max_attempts, enqueued_at, run_after, due_at, concurrency_key, schedule_id, scheduled_for
)
SELECT
    c.id, c.id, c.name, c.queue_name, c.requires, c.priority, c.args, c.kwargs, c.metadata,
    c.options, c.max_attempts, v.now, COALESCE(c.run_after, v.now), COALESCE(c.run_after, v.now),
    c.concurrency_key, c.schedule_id, c.scheduled_for
FROM jsonb_to_recordset(%(jobs)s::jsonb) AS c (
    id uuid, name text, queue_name text, requires text, priority int, args text, kwargs text,
    metadata jsonb, options jsonb, max_attempts int, run_after timestamptz, concurrency_key text,
    schedule_id bigint, scheduled_for timestamptz
)
CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
ORDER BY c.id
ON CONFLICT (schedule_id, scheduled_for) WHERE schedule_id IS NOT NULL DO NOTHING
RETURNING id, enqueued_at, run_after
