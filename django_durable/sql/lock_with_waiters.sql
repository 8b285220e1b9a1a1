-- Lock the jobs, all that wait for them, and the roots of their trees. Every verb that waits for
-- locks on several jobs takes them in this order, in one statement, so that no two verbs can wait
-- for each other.
SELECT id, root_id, awaited
FROM durable_job
WHERE id = ANY(ARRAY(
    SELECT unnest(%(ids)s::uuid[])
    UNION
    SELECT waiter_id FROM durable_await WHERE awaited_id = ANY(%(ids)s::uuid[])
    UNION
    SELECT root_id FROM durable_job WHERE id = ANY(%(ids)s::uuid[]) AND awaited
))
ORDER BY id DESC
FOR NO KEY UPDATE
