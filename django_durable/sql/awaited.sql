-- Name what parked jobs wait for, by job type, of at most `reach` awaited jobs for each.
SELECT waiter.id, awaited.name, awaited.number
FROM unnest(%(ids)s::uuid[]) AS waiter (id)
CROSS JOIN LATERAL (
    SELECT j.name, count(*) AS number
    FROM (
        SELECT a.awaited_id FROM durable_await AS a WHERE a.waiter_id = waiter.id LIMIT %(reach)s::bigint
    ) AS part
    INNER JOIN durable_job AS j ON j.id = ANY(ARRAY[part.awaited_id])
    GROUP BY j.name
) AS awaited
ORDER BY waiter.id, awaited.number DESC, awaited.name
