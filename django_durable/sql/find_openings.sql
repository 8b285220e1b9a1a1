-- Tell of the rates that are used up when the next start is possible.
SELECT rate.budget, rate.seconds, nth.moment + make_interval(secs => rate.seconds) AS opens_at
FROM unnest(%(budgets)s::text[], %(seconds)s::int[], %(limits)s::bigint[])
    AS rate (budget, seconds, most)
CROSS JOIN LATERAL (
-- include: starts
) AS log
-- The start after whose window one fewer than the limit is left.
CROSS JOIN LATERAL (
    SELECT s.moment
    FROM durable_start AS s
    WHERE
        s.budget = rate.budget AND s.total > log.total - rate.most
        AND s.moment >= statement_timestamp() + %(offset)s::interval
        - make_interval(secs => rate.seconds)
    ORDER BY s.budget, s.moment, s.total
    LIMIT 1
) AS nth
WHERE log.used >= rate.most
