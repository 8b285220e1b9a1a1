-- Lock all that wait for the jobs that are ending, and the roots of their trees, too.
company AS MATERIALIZED (
    SELECT id, root_id, awaited
    FROM durable_job
    WHERE id = ANY(ARRAY(
        SELECT waiter_id FROM durable_await WHERE awaited_id IN (SELECT id FROM ending)
        UNION
        SELECT root_id FROM ending WHERE root_id <> id
    ))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id, root_id, awaited FROM ending
UNION
SELECT id, root_id, awaited FROM company
