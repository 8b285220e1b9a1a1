-- The first due jobs of each lane: an ordered index walk in each. Compared as rows, since the planner
-- without statistics takes an equality for a handful of jobs, and sorts.
SELECT head.id, lanes.priority, head.due_at, lanes.lane, NULL::bigint AS key_hash
FROM unnest(
    %(lanes)s::bigint[], %(priorities)s::int[], %(queues)s::text[], %(bounds)s::timestamptz[]
) AS lanes (lane, priority, queue_name, bound)
CROSS JOIN LATERAL (
    SELECT j.id, j.due_at
    FROM durable_job AS j
    WHERE
        (j.key_hash IS NULL OR j.key_held) AND j.due_at IS NOT NULL
        AND (j.lane, j.due_at) >= (lanes.lane, lanes.bound)
        AND (j.lane, j.due_at)
        <= (lanes.lane, statement_timestamp() + %(offset)s::interval)
        AND j.id <> ALL(%(shunned)s::uuid[])
    ORDER BY j.lane, j.due_at, j.id
    LIMIT %(reach)s
) AS head
WHERE NOT EXISTS (
    SELECT FROM durable_queue AS q
    WHERE
        q.name = lanes.queue_name
        AND (q.paused OR q.max_running IS NOT NULL OR q.rate_limit IS NOT NULL)
)
