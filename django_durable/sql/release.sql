-- Take claims back without counting an attempt: to READY, or CANCELLED where that was requested.
WITH freed AS MATERIALIZED (
    SELECT j.id
    FROM durable_job AS j
    WHERE
        j.status = 'RUNNING' AND j.due_at IS NULL
        AND (
            (j.id, j.epoch) IN (SELECT * FROM unnest(%(ids)s::uuid[], %(epochs)s::bigint[]))
            OR (
                j.claimer = %(claimer)s::uuid
                AND (j.id, j.epoch) NOT IN (
                    SELECT * FROM unnest(%(held_ids)s::uuid[], %(held_epochs)s::bigint[])
                )
            )
        )
    ORDER BY j.id DESC
    FOR NO KEY UPDATE
)
UPDATE durable_job AS j SET
    status = CASE WHEN j.cancel_requested_at IS NULL THEN 'READY' ELSE 'CANCELLED' END,
    run_after = CASE WHEN j.cancel_requested_at IS NULL THEN COALESCE(statement_timestamp() + %(offset)s::interval + %(delay)s::interval, j.run_after) ELSE j.run_after END,
    due_at = CASE WHEN j.cancel_requested_at IS NULL THEN COALESCE(statement_timestamp() + %(offset)s::interval + %(delay)s::interval, j.run_after) END,
    finished_at = CASE WHEN j.cancel_requested_at IS NOT NULL THEN statement_timestamp() + %(offset)s::interval END,
    kept_until = CASE WHEN j.cancel_requested_at IS NOT NULL AND j.parent_id IS NULL
        THEN statement_timestamp() + %(offset)s::interval +
-- include: keep_completed
    END,
    attempt = j.attempt - CASE WHEN j.resumed THEN 0 ELSE 1 END,
    started_at = CASE WHEN j.resumed OR j.attempt > 1 THEN j.started_at END,
    rejections = j.rejections + %(rejections)s,
    lease_until = NULL, claimer = NULL, key_held = FALSE
FROM freed
WHERE j.id = freed.id
RETURNING j.id, j.epoch, j.status, j.name, j.queue_name
