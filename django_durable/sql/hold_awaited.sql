INSERT INTO durable_hold (waiter_id, awaited_id)
SELECT w.id, a.id
FROM durable_job AS a
INNER JOIN durable_job AS w ON a.root_id <> w.root_id
WHERE a.id = ANY(%(ids)s::uuid[]) AND w.id = %(waiter)s::uuid
ORDER BY a.id
ON CONFLICT (waiter_id, awaited_id) DO NOTHING
