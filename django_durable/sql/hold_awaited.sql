-- Keep those of the locked jobs that are not gone while the waiter lives, and name them. A statement
-- of its own, whose snapshot is younger than the locks.
WITH awaited AS MATERIALIZED (
    SELECT j.id, COALESCE(j.root_id, j.id) AS root_id
    FROM durable_job AS j
    WHERE j.id = ANY(%(ids)s::uuid[]) AND NOT (
-- include: gone
    )
),
held AS (
-- include: hold
)
SELECT id FROM awaited
