-- Give a new job the succeeded checkpoints of an old one, up to the named step, and its signals; and
-- with `undo` what there is to take back.
WITH signals AS (
    INSERT INTO durable_signal (job_id, name, payload, received_at)
    SELECT %(new)s::uuid, name, payload, received_at FROM durable_signal WHERE job_id = %(old)s
)
INSERT INTO durable_step (
    job_id, kind, name, ordinal, status, value, error_class, message, started_at, finished_at,
    wake_at, tries, child_id, undo_name, undo_call
)
SELECT
    %(new)s::uuid, s.kind, s.name, s.ordinal, s.status, s.value, s.error_class, s.message,
    s.started_at, s.finished_at, s.wake_at, s.tries, s.child_id,
    CASE WHEN %(undo)s THEN s.undo_name END, CASE WHEN %(undo)s THEN s.undo_call END
FROM durable_step AS s
WHERE
    s.job_id = %(old)s AND s.status = 'succeeded' AND NOT s.compensated
    AND (
        %(before)s::bigint IS NULL OR (s.ordinal, s.id) < (
            SELECT named.ordinal, named.id FROM durable_step AS named
            WHERE named.id = %(before)s::bigint
        )
    )
-- Of one ordinal, the rows tell the order.
ORDER BY s.ordinal, s.id
