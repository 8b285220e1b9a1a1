-- Lock the jobs that wait for the ended ones.
SELECT id
FROM durable_job
WHERE id IN (SELECT waiter_id FROM durable_await WHERE awaited_id = ANY(%(ids)s::uuid[]))
ORDER BY id DESC
FOR NO KEY UPDATE
