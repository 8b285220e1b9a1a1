-- Cancel the locked jobs that have not started in time. One whose waiter or root is not locked too
-- is left.
UPDATE durable_job AS j SET
    status = 'CANCELLED',
    cancel_reason = %(reason)s,
    due_at = NULL,
    finished_at = statement_timestamp() + %(offset)s::interval,
    kept_until = CASE WHEN j.parent_id IS NULL
        THEN statement_timestamp() + %(offset)s::interval +
-- include: keep_completed
    END,
    keep_for = CASE WHEN j.parent_id IS NULL
        THEN
-- include: keep_completed
    END
WHERE
    j.id = ANY(%(ids)s::uuid[])
    AND COALESCE(j.root_id, j.id) = ANY(%(ids)s::uuid[])
    AND NOT EXISTS (
        SELECT FROM durable_await AS a
        WHERE a.awaited_id = j.id AND a.waiter_id <> ALL(%(ids)s::uuid[])
    )
    AND
-- include: late
RETURNING j.id
