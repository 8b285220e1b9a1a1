-- Cancel what is locked: at once where nothing runs, by request where something does.
UPDATE durable_job AS j SET
    status = CASE WHEN j.status = 'RUNNING' THEN j.status ELSE 'CANCELLED' END,
    cancel_requested_at = COALESCE(j.cancel_requested_at, v.now),
    cancel_reason = CASE WHEN j.cancel_requested_at IS NULL THEN %(reason)s ELSE j.cancel_reason END,
    due_at = NULL,
    finished_at = CASE WHEN j.status <> 'RUNNING' THEN v.now END,
    kept_until = CASE WHEN j.status <> 'RUNNING' AND j.parent_id IS NULL
        THEN v.now +
-- include: keep_completed
    END,
    keep_for = CASE WHEN j.status <> 'RUNNING' AND j.parent_id IS NULL
        THEN
-- include: keep_completed
    END,
    resumed = CASE WHEN j.status = 'RUNNING' THEN j.resumed ELSE FALSE END,
    key_held = CASE WHEN j.status = 'RUNNING' THEN j.key_held ELSE FALSE END
FROM (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
WHERE j.id = ANY(%(ids)s::uuid[]) AND j.finished_at IS NULL
RETURNING j.id, j.status, j.name, j.cancel_reason
