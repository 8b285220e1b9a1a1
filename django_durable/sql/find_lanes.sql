-- Find lanes with jobs that need no key in the gaps between the known ones: one index seek for
-- each lane and each gap, which touches no entry of a known lane, however many it holds.
WITH RECURSIVE found AS (
    SELECT first.*, gap.high
    FROM unnest(%(lows)s::bigint[], %(highs)s::bigint[]) AS gap (low, high)
    CROSS JOIN LATERAL (
        SELECT j.lane, j.queue_name, j.name, j.requires, j.priority, j.resumed
        FROM durable_job AS j
        WHERE
            j.due_at IS NOT NULL AND (j.key_hash IS NULL OR j.key_held)
            AND j.lane > gap.low AND j.lane < gap.high
        ORDER BY j.lane
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT next.*, found.high
    FROM found
    CROSS JOIN LATERAL (
        SELECT j.lane, j.queue_name, j.name, j.requires, j.priority, j.resumed
        FROM durable_job AS j
        WHERE
            j.due_at IS NOT NULL AND (j.key_hash IS NULL OR j.key_held)
            AND j.lane > found.lane AND j.lane < found.high
        ORDER BY j.lane
        LIMIT 1
    ) AS next
)
SELECT lane, queue_name, name, requires, priority, resumed FROM found
