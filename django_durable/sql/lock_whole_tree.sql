-- Lock the listed jobs and all their descendants; tell which forbid the deletion.
WITH RECURSIVE tree AS (
    SELECT id FROM durable_job WHERE id = ANY(%(ids)s::uuid[])
    UNION
    SELECT child.id
    FROM tree
    INNER JOIN durable_job AS child ON child.parent_id = ANY(ARRAY[tree.id])
)
SELECT
    j.id, j.finished_at IS NULL AS lives,
    j.id = ANY(%(ids)s::uuid[]) AND j.parent_id IS NOT NULL AND j.root_id <> ALL(%(ids)s::uuid[]) AS is_child
FROM durable_job AS j
-- As an array, which is sought by index; the planner takes a tree for half the table.
WHERE j.id = ANY(ARRAY(SELECT id FROM tree))
ORDER BY j.id DESC
FOR UPDATE
