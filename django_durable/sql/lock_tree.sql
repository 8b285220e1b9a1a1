-- Lock the unfinished jobs of a tree, youngest first: children before those that wait for them.
WITH RECURSIVE tree AS (
    SELECT id FROM durable_job WHERE id = ANY(%(ids)s::uuid[])
    UNION
    SELECT child.id
    FROM tree
    INNER JOIN durable_job AS child ON tree.id = child.parent_id
    WHERE %(whole)s
)
SELECT j.id
FROM durable_job AS j
WHERE j.id IN (SELECT id FROM tree) AND j.finished_at IS NULL
ORDER BY j.id DESC
FOR NO KEY UPDATE
