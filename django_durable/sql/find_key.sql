-- Find the job that holds a key, without a lock: most answers need none, and a caller's long
-- transaction must not hold up the job's worker.
SELECT
    id, status,
    COALESCE(kept_until <= statement_timestamp() + %(offset)s::interval, FALSE) AS gone
FROM durable_job
WHERE name = %(name)s AND idempotency_key = %(idempotency_key)s
