-- Lock the claims whose lease has lapsed, or whose claimer is known to be dead, all that wait
-- for their jobs, and the roots of their trees; what others hold is left to them.
WITH lost AS MATERIALIZED (
    SELECT id, root_id, awaited
    FROM durable_job
    WHERE
-- include: lost_claims
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
company AS MATERIALIZED (
    SELECT id, root_id, awaited
    FROM durable_job
    WHERE id = ANY(ARRAY(
        SELECT waiter_id FROM durable_await WHERE awaited_id IN (SELECT id FROM lost)
        UNION
        SELECT root_id FROM lost WHERE root_id <> id
    ))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, root_id, awaited FROM lost
UNION
SELECT id, root_id, awaited FROM company
