-- End the delay of READY jobs.
WITH chosen AS MATERIALIZED (
    SELECT id
    FROM durable_job
    WHERE
        id = ANY(%(ids)s::uuid[]) AND status = 'READY'
        AND due_at > statement_timestamp() + %(offset)s::interval
    ORDER BY id DESC
    FOR NO KEY UPDATE
)
UPDATE durable_job AS j SET
    run_after = statement_timestamp() + %(offset)s::interval,
    due_at = statement_timestamp() + %(offset)s::interval,
    events =
-- include: log_event
FROM chosen
WHERE j.id = ANY(ARRAY[chosen.id])
RETURNING j.id, j.queue_name
