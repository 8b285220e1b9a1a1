-- Find the job that holds a key, without a lock: most answers need none, and a caller's long
-- transaction must not hold up the job's worker.
SELECT
    j.id, j.status,
-- include: gone
    AS gone
FROM durable_job AS j
WHERE j.name = %(name)s AND j.idempotency_key = %(idempotency_key)s
