-- The first due jobs of each lane.
SELECT head.id, lanes.priority, head.due_at, lanes.lane, NULL::bigint AS key_hash
FROM unnest(
    %(lanes)s::bigint[], %(priorities)s::int[], %(queues)s::text[], %(bounds)s::timestamptz[]
) AS lanes (lane, priority, queue_name, bound)
CROSS JOIN LATERAL (
-- include: lane_walk
    LIMIT %(reach)s
) AS head
WHERE NOT EXISTS (
    SELECT FROM durable_queue AS q
    WHERE
        q.name = lanes.queue_name
        AND (q.paused OR q.max_running IS NOT NULL OR q.rate_limit IS NOT NULL)
)
