-- Count what the locked budgets hold: a statement of its own, whose snapshot is younger than the
-- locks.
SELECT 1 AS kind, key_hash::text AS token, count(*) AS running
FROM durable_job
WHERE key_held AND key_hash = ANY(%(keys)s::bigint[])
GROUP BY key_hash
UNION ALL
SELECT 2, queue_name, count(*)
FROM durable_job
WHERE status = 'RUNNING' AND due_at IS NULL AND queue_name = ANY(%(queues)s::text[])
GROUP BY queue_name
