    SELECT
        latest.total - oldest.total + oldest.starts AS used, latest.total,
        extract(EPOCH FROM oldest.moment + make_interval(secs => rate.seconds) - v.now)::float8
            AS opens_in
    FROM (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
    CROSS JOIN LATERAL (
        SELECT s.moment, s.total, s.starts
        FROM durable_start AS s
        WHERE s.budget = rate.budget AND s.moment >= v.now - make_interval(secs => rate.seconds)
        ORDER BY s.budget, s.moment, s.total
        LIMIT 1
    ) AS oldest
    CROSS JOIN LATERAL (
        SELECT s.total
        FROM durable_start AS s
        WHERE s.budget = rate.budget
        ORDER BY s.budget DESC, s.moment DESC, s.total DESC
        LIMIT 1
    ) AS latest
