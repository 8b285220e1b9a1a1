-- Log what a claim has started under rate limits, whose budgets are locked. Moments never go back,
-- though the clock may.
INSERT INTO durable_start (budget, moment, starts, total, expires_at)
SELECT
    new.budget, v.moment, new.starts, COALESCE(latest.total, 0) + new.starts,
    v.moment + make_interval(secs => new.seconds)
FROM unnest(%(budgets)s::text[], %(starts)s::int[], %(seconds)s::int[])
    AS new (budget, starts, seconds)
LEFT JOIN LATERAL (
    SELECT s.moment, s.total
    FROM durable_start AS s
    WHERE s.budget = new.budget
    ORDER BY s.budget DESC, s.moment DESC, s.total DESC
    LIMIT 1
) AS latest ON TRUE
CROSS JOIN LATERAL (SELECT GREATEST(latest.moment, %(moment)s::timestamptz) AS moment) AS v
