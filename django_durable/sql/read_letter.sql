-- Read a dead letter whose job is locked, unless that is gone: has it been replayed, which key moves
-- on, and which undo job of it lives?
WITH RECURSIVE undoing AS (
    SELECT u.id, u.finished_at
    FROM durable_deadletter AS d
    INNER JOIN durable_job AS u ON d.job_id = u.parent_id
    WHERE d.id = %(letter)s AND u.metadata ? 'undo'
    UNION ALL
    SELECT r.id, r.finished_at
    FROM undoing
    INNER JOIN durable_deadletter AS d ON undoing.id = d.job_id
    INNER JOIN durable_job AS r ON d.replayed_as_id = r.id
)
SELECT
    d.replayed_at IS NOT NULL AS already, j.idempotency_key,
    (SELECT id FROM undoing WHERE finished_at IS NULL LIMIT 1) AS undoing
FROM durable_deadletter AS d
INNER JOIN durable_job AS j ON d.job_id = j.id
WHERE d.id = %(letter)s AND NOT (
-- include: gone
)
