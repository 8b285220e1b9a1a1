-- Say that the waiter waits for those of the awaited that have not ended. Those of another tree are
-- kept while it lives, also when they end.
WITH awaited AS MATERIALIZED (
    SELECT id, COALESCE(root_id, id) AS root_id
    FROM durable_job
    WHERE id = ANY(%(ids)s::uuid[]) AND finished_at IS NULL
),
held AS (
-- include: hold
)
INSERT INTO durable_await (waiter_id, awaited_id)
SELECT %(waiter)s::uuid, id
FROM awaited
ORDER BY id DESC
ON CONFLICT (waiter_id, awaited_id) DO UPDATE SET waiter_id = excluded.waiter_id
RETURNING awaited_id
