-- Lock the unfinished jobs of a tree, all that wait for them and their root, in the one order; tell
-- which are of the tree.
WITH RECURSIVE tree AS (
    SELECT id, finished_at FROM durable_job WHERE id = ANY(%(ids)s::uuid[])
    UNION
    SELECT child.id, child.finished_at
    FROM tree
    INNER JOIN durable_job AS child ON child.parent_id = ANY(ARRAY[tree.id])
    -- An undo job is cancelled only by name.
    WHERE %(whole)s AND NOT child.metadata ? 'undo'
),
living AS MATERIALIZED (SELECT id FROM tree WHERE finished_at IS NULL)
SELECT j.id, j.id IN (SELECT id FROM living) AS in_tree
FROM durable_job AS j
WHERE j.id = ANY(ARRAY(
    SELECT id FROM living
    UNION
    SELECT waiter_id FROM durable_await WHERE awaited_id IN (SELECT id FROM living)
    UNION
    SELECT root_id FROM durable_job WHERE id = ANY(ARRAY(SELECT id FROM living))
))
ORDER BY j.id DESC
FOR NO KEY UPDATE OF j
