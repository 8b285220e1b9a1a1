-- Say of schedules that no live worker knows their job type. One index seek for each job type that
-- has schedules, however many those are. A row that somebody holds waits for the next look.
WITH RECURSIVE scheduled AS (
    (SELECT job_name FROM durable_schedule ORDER BY job_name LIMIT 1)
    UNION ALL
    SELECT next.job_name
    FROM scheduled
    CROSS JOIN LATERAL (
        SELECT s.job_name
        FROM durable_schedule AS s
        WHERE s.job_name > scheduled.job_name
        ORDER BY s.job_name
        LIMIT 1
    ) AS next
),
unknown AS (
    SELECT job_name
    FROM scheduled
    WHERE NOT EXISTS (
        SELECT FROM durable_worker AS w
        WHERE
            w.heartbeat_at > statement_timestamp() + %(offset)s::interval
                - 2 * COALESCE(w.lease, %(lease)s::interval)
            AND w.job_names ? scheduled.job_name
    )
)
UPDATE durable_schedule SET broken = %(why)s
WHERE id IN (
    SELECT s.id
    FROM durable_schedule AS s
    INNER JOIN unknown ON s.job_name = unknown.job_name
    WHERE s.broken = ''
    FOR NO KEY UPDATE OF s SKIP LOCKED
)
