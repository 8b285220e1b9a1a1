INSERT INTO durable_worker (
    incarnation, name, hostname, pid, queues, excluded_queues, job_names, capabilities, slots,
    draining, lease, started_at, heartbeat_at
)
VALUES (
    %(incarnation)s, %(name)s, %(hostname)s, %(pid)s, %(queues)s::jsonb,
    %(excluded_queues)s::jsonb, %(job_names)s::jsonb, %(capabilities)s::jsonb, %(slots)s,
    %(draining)s, %(lease)s::interval, statement_timestamp() + %(offset)s::interval,
    statement_timestamp() + %(offset)s::interval
)
ON CONFLICT (incarnation) DO UPDATE SET
    heartbeat_at = excluded.heartbeat_at,
    slots = excluded.slots,
    job_names = excluded.job_names,
    draining = durable_worker.draining OR excluded.draining
RETURNING draining
