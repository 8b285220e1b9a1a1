-- Lock the claims whose lease has lapsed, or whose claimer is known to be dead, and all that wait
-- for their jobs; what others hold is left to them.
WITH lost AS MATERIALIZED (
    SELECT id
    FROM durable_job
    WHERE
-- include: lost_claims
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
waiters AS MATERIALIZED (
    SELECT id
    FROM durable_job
    WHERE id IN (
        SELECT waiter_id FROM durable_await WHERE awaited_id IN (SELECT id FROM lost)
    )
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM lost
UNION
SELECT id FROM waiters
