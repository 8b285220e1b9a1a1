-- Lock the job that holds a key, so that what a later statement decides from its state, and from
-- who keeps it, stays true.
SELECT id
FROM durable_job
WHERE name = %(name)s AND idempotency_key = %(idempotency_key)s
FOR NO KEY UPDATE
