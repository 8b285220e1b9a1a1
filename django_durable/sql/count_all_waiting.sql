-- Count the jobs that have a due time, by queue: all of them.
SELECT
    j.queue_name,
    count(*) FILTER (WHERE j.status = 'READY'),
    count(*) FILTER (WHERE j.status = 'READY' AND j.due_at <= v.now),
    count(*) FILTER (WHERE j.status = 'WAITING'),
    extract(EPOCH FROM v.now - min(GREATEST(j.due_at, '0001-01-02'::timestamptz))
        FILTER (WHERE j.status = 'READY' AND j.due_at <= v.now))::float8,
    FALSE
FROM durable_job AS j
CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
WHERE j.due_at IS NOT NULL
GROUP BY j.queue_name, v.now
