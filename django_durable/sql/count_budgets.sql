-- Count what budgets hold: how many run under a key or in a queue, and how many have started in a
-- window. The limits of queues are read here, too, as they are now. For locked budgets a statement
-- of its own, whose snapshot is younger than the locks.
SELECT
    1 AS kind, key_hash::text AS token, NULL::int AS seconds, NULL::bigint AS most,
    count(*) AS used, NULL::float8 AS opens_in
FROM durable_job
WHERE key_held AND key_hash = ANY(%(keys)s::bigint[])
GROUP BY key_hash
UNION ALL
SELECT 2, q.name, NULL, q.max_running, COALESCE(running.number, 0), NULL
FROM durable_queue AS q
LEFT JOIN (
    SELECT queue_name, count(*) AS number
    FROM durable_job
    WHERE status = 'RUNNING' AND due_at IS NULL AND queue_name = ANY(%(queues)s::text[])
    GROUP BY queue_name
) AS running ON q.name = running.queue_name
WHERE q.name = ANY(%(queues)s::text[]) AND q.max_running IS NOT NULL
UNION ALL
SELECT rate.kind, rate.token, rate.seconds, rate.most, COALESCE(log.used, 0), log.opens_in
FROM (
    SELECT * FROM unnest(
        %(kinds)s::int[], %(tokens)s::text[], %(seconds)s::int[], %(budgets)s::text[]
    ) AS listed (kind, token, seconds, budget)
    CROSS JOIN (SELECT NULL::bigint AS most) AS nothing
    UNION ALL
    SELECT
        2, q.name,
        CASE split_part(q.rate_limit, '/', 2)
            WHEN 's' THEN 1 WHEN 'm' THEN 60 WHEN 'h' THEN 3600 ELSE 86400
        END,
        'queue:' || q.name, split_part(q.rate_limit, '/', 1)::bigint
    FROM durable_queue AS q
    WHERE q.name = ANY(%(queues)s::text[]) AND q.rate_limit IS NOT NULL
) AS rate
LEFT JOIN LATERAL (
-- include: starts
) AS log ON TRUE
