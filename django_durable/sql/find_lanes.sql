-- Find lanes with unkeyed jobs in the gaps between the known ones: one index seek a gap, which
-- touches no entry of a known lane, however many it holds.
SELECT found.lane, found.queue_name, found.name, found.requires, found.priority
FROM unnest(%(lows)s::bigint[], %(highs)s::bigint[]) AS gap (low, high)
CROSS JOIN LATERAL (
    SELECT j.lane, j.queue_name, j.name, j.requires, j.priority
    FROM durable_job AS j
    WHERE
        j.due_at IS NOT NULL AND j.key_hash IS NULL AND j.lane > gap.low AND j.lane < gap.high
    ORDER BY j.lane
    LIMIT 1
) AS found
