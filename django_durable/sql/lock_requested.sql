-- Lock the claims of give_back.sql that are asked to cancel, and all that wait for their jobs, in
-- the one order.
WITH requested AS MATERIALIZED (
    SELECT j.id
    FROM durable_job AS j
    WHERE
        j.cancel_requested_at IS NOT NULL AND
-- include: stopped_claims
)
SELECT id, root_id, awaited
FROM durable_job
WHERE id = ANY(ARRAY(
    SELECT id FROM requested
    UNION
    SELECT waiter_id FROM durable_await WHERE awaited_id IN (SELECT id FROM requested)
    UNION
    SELECT root_id FROM durable_job WHERE id = ANY(ARRAY(SELECT id FROM requested))
))
ORDER BY id DESC
FOR NO KEY UPDATE
