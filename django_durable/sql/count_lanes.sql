-- Count the due jobs of each queue, job type and requirement: an index walk in each lane that stops
-- at the limit. Of those that wait for a concurrency key only so many of each priority are seen.
WITH RECURSIVE lanes AS (
    (
        SELECT j.lane, j.queue_name, j.name, j.requires
        FROM durable_job AS j
        WHERE j.due_at IS NOT NULL AND (j.key_hash IS NULL OR j.key_held)
        ORDER BY j.lane
        LIMIT 1
    )
    UNION ALL
    SELECT next.*
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT j.lane, j.queue_name, j.name, j.requires
        FROM durable_job AS j
        WHERE j.due_at IS NOT NULL AND (j.key_hash IS NULL OR j.key_held) AND j.lane > lanes.lane
        ORDER BY j.lane
        LIMIT 1
    ) AS next
),
levels AS (
    (
        SELECT j.priority
        FROM durable_job AS j
        WHERE j.due_at IS NOT NULL AND j.concurrency_key IS NOT NULL AND NOT j.key_held
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
            j.due_at IS NOT NULL AND j.concurrency_key IS NOT NULL AND NOT j.key_held
            AND j.priority < levels.priority
        ORDER BY j.priority DESC
        LIMIT 1
    ) AS next
),
counted AS (
    SELECT lanes.queue_name, lanes.name, lanes.requires, head.due, head.oldest, head.due AS seen
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT count(*) AS due, min(GREATEST(part.due_at, '0001-01-02'::timestamptz)) AS oldest
        FROM (
            SELECT j.due_at
            FROM durable_job AS j
            WHERE
                j.lane = lanes.lane AND (j.key_hash IS NULL OR j.key_held)
                AND j.due_at <= statement_timestamp() + %(offset)s::interval
            ORDER BY j.due_at, j.id
            LIMIT %(reach)s
        ) AS part
    ) AS head
    UNION ALL
    SELECT head.queue_name, head.name, head.requires, head.due, head.oldest, head.seen
    FROM levels
    CROSS JOIN LATERAL (
        SELECT
            part.queue_name, part.name, part.requires, count(*) AS due,
            min(GREATEST(part.due_at, '0001-01-02'::timestamptz)) AS oldest, sum(count(*)) OVER () AS seen
        FROM (
            SELECT j.queue_name, j.name, j.requires, j.due_at
            FROM durable_job AS j
            WHERE
                j.priority = levels.priority AND j.concurrency_key IS NOT NULL AND NOT j.key_held
                AND j.due_at <= statement_timestamp() + %(offset)s::interval
            ORDER BY j.due_at, j.id
            LIMIT %(reach)s
        ) AS part
        GROUP BY part.queue_name, part.name, part.requires
    ) AS head
)
SELECT
    queue_name, name, requires, sum(due)::bigint,
    extract(EPOCH FROM statement_timestamp() + %(offset)s::interval - min(oldest))::float8,
    bool_or(seen >= %(reach)s)
FROM counted
WHERE due > 0
GROUP BY queue_name, name, requires
ORDER BY queue_name, name, requires
