-- Take claims back without counting an attempt; those asked to cancel are for cancel_claimed.sql.
WITH freed AS MATERIALIZED (
    SELECT j.id
    FROM durable_job AS j
    WHERE
        j.cancel_requested_at IS NULL AND
-- include: stopped_claims
    -- The one order of locks, in a form for which no index is walked from end to end.
    ORDER BY uuid_send(j.id) DESC
    FOR NO KEY UPDATE
)
UPDATE durable_job AS j SET
    status = 'READY',
    run_after = COALESCE(
        statement_timestamp() + %(offset)s::interval + %(delay)s::interval, j.run_after
    ),
    due_at = COALESCE(
        statement_timestamp() + %(offset)s::interval + %(delay)s::interval, j.run_after
    ),
    attempt = j.attempt - CASE WHEN j.resumed THEN 0 ELSE 1 END,
    started_at = CASE WHEN j.resumed OR j.attempt > 1 THEN j.started_at END,
    rejections = j.rejections + %(rejections)s,
    lease_until = NULL, claimer = NULL, key_held = FALSE,
    events =
-- include: log_event
FROM freed
WHERE j.id = ANY(ARRAY[freed.id])
RETURNING j.id, j.epoch, j.name, j.queue_name
