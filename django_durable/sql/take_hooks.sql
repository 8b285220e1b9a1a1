-- Take dead letters whose hook is due, and put them off for the other workers meanwhile.
WITH due AS MATERIALIZED (
    SELECT d.id
    FROM durable_deadletter AS d
    INNER JOIN durable_job AS j ON j.id = ANY(ARRAY[d.job_id])
    WHERE
        d.hook_due_at IS NOT NULL
        AND d.hook_due_at <= statement_timestamp() + %(offset)s::interval
        AND j.name = ANY(%(names)s::text[])
    ORDER BY d.hook_due_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE OF d SKIP LOCKED
)
UPDATE durable_deadletter AS d SET
    hook_due_at = statement_timestamp() + %(offset)s::interval + %(retry_after)s::interval
FROM due
WHERE d.id = due.id
RETURNING d.id
