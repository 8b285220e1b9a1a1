-- Tell which of these lanes hold a due job.
SELECT lanes.lane
FROM unnest(%(lanes)s::bigint[]) AS lanes (lane)
WHERE EXISTS (
    SELECT FROM durable_job AS j
    WHERE
        (j.key_hash IS NULL OR j.key_held) AND j.due_at IS NOT NULL
        AND (j.lane, j.due_at) >= (lanes.lane, '-infinity'::timestamptz)
        AND (j.lane, j.due_at) <= (lanes.lane, statement_timestamp() + %(offset)s::interval)
)
