-- Walk the (key, lane) pairs from where the last claim stopped, one index seek for each, and
-- bring the first due jobs of those that this worker may run.
WITH RECURSIVE seek AS (
    (
        SELECT 1 AS step, j.key_hash, j.lane, j.queue_name, j.name, j.requires, j.priority
        FROM durable_job AS j
        WHERE
            j.due_at IS NOT NULL AND j.key_hash IS NOT NULL
            AND (j.key_hash, j.lane) > (%(after_key)s::bigint, %(after_lane)s::bigint)
        ORDER BY j.key_hash, j.lane
        LIMIT 1
    )
    UNION ALL
    SELECT seek.step + 1, next.*
    FROM seek
    CROSS JOIN LATERAL (
        SELECT j.key_hash, j.lane, j.queue_name, j.name, j.requires, j.priority
        FROM durable_job AS j
        WHERE
            j.due_at IS NOT NULL AND j.key_hash IS NOT NULL
            AND (j.key_hash, j.lane) > (seek.key_hash, seek.lane)
        ORDER BY j.key_hash, j.lane
        LIMIT 1
    ) AS next
    WHERE seek.step < %(pairs)s
)
SELECT
    seek.step, seek.key_hash, seek.lane, head.id, seek.priority, head.due_at, seek.queue_name,
    seek.name
FROM seek
LEFT JOIN LATERAL (
    SELECT j.id, j.due_at
    FROM durable_job AS j
    WHERE
        j.key_hash = seek.key_hash AND j.lane = seek.lane AND j.due_at IS NOT NULL
        AND j.due_at <= statement_timestamp() + %(offset)s::interval
        AND j.id <> ALL(%(shunned)s::uuid[])
        AND seek.name = ANY(%(names)s::text[])
        AND (%(queues)s::text[] IS NULL OR seek.queue_name = ANY(%(queues)s::text[]))
        AND seek.queue_name <> ALL(%(excluded_queues)s::text[])
        AND (seek.requires IS NULL OR seek.requires = ANY(%(capabilities)s::text[]))
        AND NOT EXISTS (
            SELECT FROM durable_queue AS q WHERE q.name = seek.queue_name AND q.paused
        )
    ORDER BY j.due_at, j.id
    LIMIT %(reach)s
) AS head ON TRUE
ORDER BY seek.step, head.due_at, head.id
