-- Tell which of these lanes hold a due job: one index seek for each. EXISTS could be turned into a
-- join that reads all lanes.
SELECT lanes.lane
FROM unnest(%(lanes)s::bigint[]) AS lanes (lane)
CROSS JOIN LATERAL (
    SELECT
    FROM durable_job AS j
    WHERE
        (j.key_hash IS NULL OR j.key_held) AND j.due_at IS NOT NULL
        AND (j.lane, j.due_at) >= (lanes.lane, '-infinity'::timestamptz)
        AND (j.lane, j.due_at) <= (lanes.lane, statement_timestamp() + %(offset)s::interval)
    ORDER BY j.lane, j.due_at, j.id
    LIMIT 1
) AS due
