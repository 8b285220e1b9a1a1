-- Lock jobs, which an enqueue of their keys does too, and their roots, which a sweep does; in the
-- one order, see lock_with_waiters.sql.
SELECT id
FROM durable_job
WHERE id = ANY(ARRAY(
    SELECT unnest(%(ids)s::uuid[])
    UNION
    SELECT root_id FROM durable_job WHERE id = ANY(%(ids)s::uuid[])
))
ORDER BY id DESC
FOR NO KEY UPDATE
