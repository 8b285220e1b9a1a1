-- End the locked claims that are asked to cancel, without counting an attempt.
UPDATE durable_job AS j SET
    status = 'CANCELLED',
    finished_at = statement_timestamp() + %(offset)s::interval,
    kept_until = CASE WHEN j.parent_id IS NULL
        THEN statement_timestamp() + %(offset)s::interval +
-- include: keep_completed
    END,
    keep_for = CASE WHEN j.parent_id IS NULL
        THEN
-- include: keep_completed
    END,
    attempt = j.attempt - CASE WHEN j.resumed THEN 0 ELSE 1 END,
    rejections = j.rejections + %(rejections)s,
    lease_until = NULL, claimer = NULL, key_held = FALSE, resumed = FALSE
WHERE
    j.id = ANY(%(locked)s::uuid[]) AND j.cancel_requested_at IS NOT NULL AND
-- include: stopped_claims
RETURNING j.id, j.epoch, j.name, j.queue_name
