-- The undo job that has not ended, or the replay of one, of the job j, of its replays, or of what its
-- checkpoints were forked from: it may be taking back what j has a copy of.
(
    WITH RECURSIVE undoing AS (
        SELECT j.id
        UNION
        SELECT next.id
        FROM undoing
        CROSS JOIN LATERAL (
            SELECT o.forked_from AS id
            FROM durable_job AS o
            WHERE
                o.id = undoing.id AND o.forked_from IS NOT NULL
                AND EXISTS (
                    SELECT
                    FROM durable_step AS mine
                    INNER JOIN durable_step AS its USING (kind, name, started_at)
                    WHERE mine.job_id = o.id AND its.job_id = o.forked_from
                )
            UNION ALL
            SELECT d.replayed_as_id
            FROM durable_deadletter AS d
            WHERE d.job_id = undoing.id AND d.replayed_as_id IS NOT NULL
            UNION ALL
            SELECT u.id
            FROM durable_job AS u
            WHERE u.parent_id = undoing.id AND u.metadata ? 'undo'
        ) AS next
    )
    SELECT u.id
    FROM undoing
    INNER JOIN durable_job AS u ON u.id = ANY(ARRAY[undoing.id])
    WHERE u.id <> j.id AND u.finished_at IS NULL AND u.metadata ? 'undo'
    LIMIT 1
)
