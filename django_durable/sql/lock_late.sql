-- Lock jobs that have not started in time, all that wait for them, and the roots of their trees;
-- what others hold is left to them.
WITH ending AS MATERIALIZED (
    SELECT id, root_id, awaited
    FROM durable_job
    WHERE
-- include: late
    ORDER BY start_by
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
-- include: lock_company
