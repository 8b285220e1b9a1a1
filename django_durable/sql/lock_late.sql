-- Lock jobs that have not started in time, all that wait for them, and the roots of their trees;
-- what others hold is left to them.
WITH late AS MATERIALIZED (
    SELECT id, root_id, awaited
    FROM durable_job
    WHERE
-- include: late
    ORDER BY start_by
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
company AS MATERIALIZED (
    SELECT id, root_id, awaited
    FROM durable_job
    WHERE id = ANY(ARRAY(
        SELECT waiter_id FROM durable_await WHERE awaited_id IN (SELECT id FROM late)
        UNION
        SELECT root_id FROM late WHERE root_id <> id
    ))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, root_id, awaited FROM late
UNION
SELECT id, root_id, awaited FROM company
