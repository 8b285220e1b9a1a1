-- Name the members of the trees that may go: all are locked, none lives, and none is kept for a
-- live job that has awaited it. A statement of its own, whose snapshot is younger than the locks.
WITH tree AS MATERIALIZED (
    SELECT id, root_id, finished_at FROM durable_job WHERE id = ANY(%(roots)s::uuid[])
    UNION ALL
    SELECT id, root_id, finished_at
    FROM durable_job
    WHERE root_id = ANY(%(roots)s::uuid[]) AND parent_id IS NOT NULL
),
kept AS MATERIALIZED (
    SELECT COALESCE(j.root_id, j.id) AS root_id
    FROM tree AS j
    WHERE
        j.finished_at IS NULL
        OR j.id <> ALL(%(locked)s::uuid[])
        OR
-- include: held
)
SELECT tree.id
FROM tree
WHERE NOT EXISTS (SELECT FROM kept WHERE kept.root_id = COALESCE(tree.root_id, tree.id))
