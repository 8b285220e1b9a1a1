-- The due jobs of one of `lanes`, from its bound on: an ordered index walk. Compared as rows, since the
-- planner without statistics takes an equality for a handful of jobs, and sorts.
SELECT j.id, j.due_at
FROM durable_job AS j
WHERE
    (j.key_hash IS NULL OR j.key_held) AND j.due_at IS NOT NULL
    AND (j.lane, j.due_at) >= (lanes.lane, lanes.bound)
    AND (j.lane, j.due_at)
    <= (lanes.lane, statement_timestamp() + %(offset)s::interval)
    AND j.id <> ALL(%(shunned)s::uuid[])
ORDER BY j.lane, j.due_at, j.id
