-- Name those of the jobs that are kept for the waiter already.
SELECT j.id
FROM durable_job AS j
INNER JOIN durable_hold AS h ON COALESCE(j.root_id, j.id) = h.awaited_id
WHERE j.id = ANY(%(ids)s::uuid[]) AND h.waiter_id = %(waiter)s::uuid
