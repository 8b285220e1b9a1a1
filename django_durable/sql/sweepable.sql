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
    SELECT COALESCE(tree.root_id, tree.id) AS root_id
    FROM tree
    WHERE
        tree.finished_at IS NULL
        OR tree.id <> ALL(%(locked)s::uuid[])
        OR EXISTS (
            SELECT
            FROM durable_hold AS h
            INNER JOIN durable_job AS w ON h.waiter_id = w.id
            WHERE h.awaited_id = tree.id AND w.finished_at IS NULL
        )
)
SELECT tree.id
FROM tree
WHERE NOT EXISTS (SELECT FROM kept WHERE kept.root_id = COALESCE(tree.root_id, tree.id))
