-- Read a dead letter whose job is locked: has it been replayed, and which key moves on?
SELECT d.replayed_at IS NOT NULL AS already, j.idempotency_key
FROM durable_deadletter AS d
INNER JOIN durable_job AS j ON d.job_id = j.id
WHERE d.id = %(letter)s
