-- Keep the trees of the awaited jobs while the waiter lives. A tree is kept or deleted as a whole,
-- so its root stands for it; that of the waiter is kept as it is.
INSERT INTO durable_hold (waiter_id, awaited_id)
SELECT DISTINCT w.id, a.root_id
FROM awaited AS a
INNER JOIN durable_job AS w ON a.root_id <> COALESCE(w.root_id, w.id)
WHERE w.id = %(waiter)s::uuid
ORDER BY a.root_id
ON CONFLICT (waiter_id, awaited_id) DO NOTHING
