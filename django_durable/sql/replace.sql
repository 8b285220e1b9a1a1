-- Give a job that has not started the arguments, due time and options of a later call.
UPDATE durable_job SET
    queue_name = %(queue_name)s, requires = %(requires)s, priority = %(priority)s,
    args = %(args)s, kwargs = %(kwargs)s, metadata = %(metadata)s::jsonb,
    options = %(options)s::jsonb, max_attempts = %(max_attempts)s,
    concurrency_key = %(concurrency_key)s,
    run_after = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + %(offset)s::interval + %(delay)s::interval),
    due_at = COALESCE(%(run_after)s::timestamptz, statement_timestamp() + %(offset)s::interval + %(delay)s::interval),
    start_by = GREATEST(
        COALESCE(%(run_after)s::timestamptz, statement_timestamp() + %(offset)s::interval + %(delay)s::interval),
        statement_timestamp() + %(offset)s::interval
    ) + make_interval(secs => (%(options)s::jsonb ->> 'start_within')::float8)
WHERE id = %(existing)s AND status = 'READY' AND attempt = 0 AND NOT resumed
RETURNING id
