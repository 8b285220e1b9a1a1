-- Record the attempts whose lease has lapsed, or whose claimer is known to be dead, as lost.
WITH doomed AS MATERIALIZED (
    SELECT
        id, epoch, name, queue_name, attempt, max_attempts, cancel_requested_at, cancel_reason,
        worker, claimed_at, run_after
    FROM durable_job
    WHERE
        status = 'RUNNING' AND due_at IS NULL
        AND CASE
            WHEN %(claimers)s::uuid[] IS NULL THEN lease_until < statement_timestamp() + %(offset)s::interval
            ELSE claimer = ANY(%(claimers)s::uuid[])
        END
    ORDER BY id DESC
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
),
-- include: fail_tail
