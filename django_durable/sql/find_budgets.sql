-- Tell at which priorities jobs with keys wait, one index seek for each, and which queues have a
-- limit.
WITH RECURSIVE levels AS (
    (
        SELECT j.priority
        FROM durable_job AS j
        WHERE j.due_at IS NOT NULL AND j.key_hash IS NOT NULL AND NOT j.key_held
        ORDER BY j.priority DESC
        LIMIT 1
    )
    UNION ALL
    SELECT next.priority
    FROM levels
    CROSS JOIN LATERAL (
        SELECT j.priority
        FROM durable_job AS j
        WHERE
            j.due_at IS NOT NULL AND j.key_hash IS NOT NULL AND NOT j.key_held
            AND j.priority < levels.priority
        ORDER BY j.priority DESC
        LIMIT 1
    ) AS next
)
SELECT
    (SELECT array_agg(priority ORDER BY priority DESC) FROM levels) AS levels,
    (
        SELECT array_agg(name ORDER BY name) FROM durable_queue
        WHERE max_running IS NOT NULL OR rate_limit IS NOT NULL
    ) AS limited
