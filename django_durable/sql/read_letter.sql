-- Read a dead letter whose job is locked, unless that is gone: has it been replayed, which key moves
-- on, and which undo job of it lives?
SELECT
    d.replayed_at IS NOT NULL AS already, j.idempotency_key,
-- include: live_undo
    AS undoing
FROM durable_deadletter AS d
INNER JOIN durable_job AS j ON j.id = ANY(ARRAY[d.job_id])
WHERE d.id = %(letter)s AND NOT (
-- include: gone
)
