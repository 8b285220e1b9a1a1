-- Lock the claims whose lease has lapsed, or whose claimer is known to be dead, all that wait
-- for their jobs, and the roots of their trees; what others hold is left to them.
WITH ending AS MATERIALIZED (
    SELECT id, root_id, awaited
    FROM durable_job
    WHERE
-- include: lost_claims
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
-- include: lock_company
