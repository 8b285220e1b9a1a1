-- The undo job of the job j that has not ended, or the replay of one.
(
    WITH RECURSIVE undoing AS (
        SELECT u.id, u.finished_at
        FROM durable_job AS u
        WHERE u.parent_id = j.id AND u.metadata ? 'undo'
        UNION ALL
        SELECT r.id, r.finished_at
        FROM undoing
        INNER JOIN durable_deadletter AS d ON undoing.id = d.job_id
        INNER JOIN durable_job AS r ON d.replayed_as_id = r.id
    )
    SELECT id FROM undoing WHERE finished_at IS NULL LIMIT 1
)
