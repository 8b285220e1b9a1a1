-- Lock the job that holds a key, so that what is decided from its state stays true.
SELECT
    id, status,
    COALESCE(kept_until <= statement_timestamp() + %(offset)s::interval, FALSE) AS gone
FROM durable_job
WHERE name = %(name)s AND idempotency_key = %(idempotency_key)s
FOR NO KEY UPDATE
