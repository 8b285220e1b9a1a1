-- Tell from when on each lane holds jobs, since what lies before are dead index entries, and in how
-- many seconds the first one falls due; nothing for a lane that holds none. There is no bound where
-- Python holds none so early.
SELECT
    lanes.lane,
    CASE
        WHEN head.due_at < '0001-01-02' THEN NULL
        ELSE LEAST(head.due_at, statement_timestamp() + %(offset)s::interval)
    END AS bound,
    extract(
        EPOCH FROM head.near - statement_timestamp() - %(offset)s::interval
    )::float8 AS due_in
FROM unnest(%(lanes)s::bigint[]) AS lanes (lane)
LEFT JOIN LATERAL (
    SELECT
        j.due_at,
        -- What is infinite is not to be subtracted.
        LEAST(GREATEST(j.due_at, '0001-01-02'::timestamptz), '9999-12-30') AS near
    FROM durable_job AS j
    WHERE j.lane = lanes.lane AND (j.key_hash IS NULL OR j.key_held) AND j.due_at IS NOT NULL
    ORDER BY j.due_at, j.id
    LIMIT 1
) AS head ON TRUE
