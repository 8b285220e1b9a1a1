-- Park the run, unless its claim is lost or its cancellation requested. What it waited for before
-- (until its deadline came) must not hold up or wake this wait.
WITH parked AS (
    UPDATE durable_job SET
        status = 'WAITING',
        due_at = %(wake_at)s::timestamptz,
        resumed = TRUE,
        waits_for = %(signal)s,
        lease_until = NULL, claimer = NULL,
        key_held = key_held AND %(hold_key)s
    WHERE id = %(id)s AND epoch = %(epoch)s AND status = 'RUNNING' AND cancel_requested_at IS NULL
    RETURNING id
),
stale AS (
    DELETE FROM durable_await AS a
    USING parked
    WHERE a.waiter_id = parked.id AND a.awaited_id <> ALL(%(awaited)s::uuid[])
)
SELECT id FROM parked
