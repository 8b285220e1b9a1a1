-- Lock a dead letter and its job, whose key moves on.
SELECT j.id, d.replayed_at, j.idempotency_key
FROM durable_deadletter AS d
INNER JOIN durable_job AS j ON d.job_id = j.id
WHERE d.id = %(letter)s
FOR NO KEY UPDATE
