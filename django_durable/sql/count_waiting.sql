-- Count the jobs that have a due time, by queue. Lane by lane, each an index walk that stops at the
-- limit, so that one full lane hides no other; then those with a concurrency key.
WITH RECURSIVE lanes AS (
    (
        SELECT j.lane, j.queue_name
        FROM durable_job AS j
        WHERE j.due_at IS NOT NULL AND (j.key_hash IS NULL OR j.key_held)
        ORDER BY j.lane
        LIMIT 1
    )
    UNION ALL
    SELECT next.lane, next.queue_name
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT j.lane, j.queue_name
        FROM durable_job AS j
        WHERE j.due_at IS NOT NULL AND (j.key_hash IS NULL OR j.key_held) AND j.lane > lanes.lane
        ORDER BY j.lane
        LIMIT 1
    ) AS next
),
counted AS (
    SELECT lanes.queue_name, lane.*
    FROM lanes
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS seen,
            count(*) FILTER (WHERE part.status = 'READY') AS ready,
            count(*) FILTER (WHERE part.status = 'READY' AND part.due_at <= v.now) AS due,
            count(*) FILTER (WHERE part.status = 'WAITING') AS waiting,
            v.now - min(GREATEST(part.due_at, '0001-01-02'::timestamptz)) FILTER (
                WHERE part.status = 'READY' AND part.due_at <= v.now
            ) AS oldest
        FROM (
            SELECT j.status, j.due_at
            FROM durable_job AS j
            WHERE j.lane = lanes.lane AND j.due_at IS NOT NULL AND (j.key_hash IS NULL OR j.key_held)
            ORDER BY j.due_at, j.id
            LIMIT %(reach)s::bigint
        ) AS part
        CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
        GROUP BY v.now
    ) AS lane
    UNION ALL
    SELECT
        part.queue_name,
        sum(count(*)) OVER (),
        count(*) FILTER (WHERE part.status = 'READY'),
        count(*) FILTER (WHERE part.status = 'READY' AND part.due_at <= v.now),
        count(*) FILTER (WHERE part.status = 'WAITING'),
        v.now - min(GREATEST(part.due_at, '0001-01-02'::timestamptz)) FILTER (WHERE part.status = 'READY' AND part.due_at <= v.now)
    FROM (
        SELECT j.queue_name, j.status, j.due_at
        FROM durable_job AS j
        WHERE j.due_at IS NOT NULL AND j.key_hash IS NOT NULL AND NOT j.key_held
        LIMIT %(reach)s::bigint
    ) AS part
    CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
    GROUP BY part.queue_name, v.now
)
SELECT
    queue_name, sum(ready)::bigint, sum(due)::bigint, sum(waiting)::bigint,
    max(extract(EPOCH FROM oldest)::float8),
    bool_or(seen >= %(reach)s::bigint)
FROM counted
GROUP BY queue_name
