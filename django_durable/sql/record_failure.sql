-- Record an attempt that failed, guarded by its claim.
WITH doomed AS MATERIALIZED (
    SELECT
        id, epoch, name, queue_name, attempt, max_attempts, cancel_requested_at, cancel_reason,
        worker, claimed_at, run_after, %(message)s::text AS message
    FROM durable_job
    WHERE id = %(id)s AND epoch = %(epoch)s AND status = 'RUNNING'
    FOR NO KEY UPDATE
),
-- include: fail_tail
