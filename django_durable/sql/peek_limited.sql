-- Peek where queues have limits and job types rates: of such no more than seems to fit, so that
-- what they hold back hides nothing that lies behind. What is brought is locked and counted later.
-- No rate holds back what is resumed.
SELECT
    peeked.id, peeked.priority, GREATEST(peeked.due_at, '0001-01-02'::timestamptz) AS due_at, peeked.lane
FROM (
    SELECT
        head.id, lanes.priority, head.due_at, lanes.lane, lanes.room, lanes.share,
        row_number() OVER (
            PARTITION BY lanes.queue_name, lanes.resumed
            ORDER BY lanes.priority DESC, head.due_at, head.id
        ) AS place,
        row_number() OVER (
            PARTITION BY lanes.type_name, lanes.resumed
            ORDER BY lanes.priority DESC, head.due_at, head.id
        ) AS type_place
    FROM unnest(
        %(lanes)s::bigint[], %(priorities)s::int[], %(queues)s::text[], %(bounds)s::timestamptz[],
        %(rooms)s::bigint[], %(shares)s::bigint[], %(types)s::text[], %(resumed)s::boolean[]
    ) AS lanes (lane, priority, queue_name, bound, room, share, type_name, resumed)
    CROSS JOIN LATERAL (
-- include: lane_walk
        LIMIT LEAST(lanes.room, lanes.share, %(reach)s)
    ) AS head
    WHERE NOT EXISTS (
        SELECT FROM durable_queue AS q
        WHERE
            q.name = lanes.queue_name
            AND (
                q.paused
                OR ((q.max_running IS NOT NULL OR q.rate_limit IS NOT NULL) AND lanes.room IS NULL)
            )
    )
) AS peeked
WHERE
    (peeked.room IS NULL OR peeked.place <= peeked.room)
    AND (peeked.share IS NULL OR peeked.type_place <= peeked.share)
ORDER BY peeked.priority DESC, peeked.due_at, peeked.id
LIMIT %(reach)s
