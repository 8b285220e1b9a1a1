-- Record the locked claims that are lost. One whose waiter or root is not locked too is left.
WITH doomed AS MATERIALIZED (
    SELECT
        id, epoch, name, queue_name, attempt, max_attempts, cancel_requested_at, cancel_reason,
        worker, claimed_at, run_after,
        replace(%(message)s::text, '{worker}', COALESCE(worker, '')) AS message
    FROM durable_job
    WHERE
        id = ANY(%(ids)s::uuid[])
        AND COALESCE(root_id, id) = ANY(%(ids)s::uuid[])
        AND NOT EXISTS (
            SELECT FROM durable_await AS a
            WHERE a.awaited_id = durable_job.id AND a.waiter_id <> ALL(%(ids)s::uuid[])
        )
        AND
-- include: lost_claims
),
-- include: fail_tail
