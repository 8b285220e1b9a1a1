-- Count the jobs that a sweep would delete, by whole tree.
SELECT COALESCE(sum(1 + tree.members), 0)::bigint
FROM durable_job AS j
CROSS JOIN LATERAL (
    SELECT count(*) AS members, count(m.finished_at) AS ended
    FROM durable_job AS m
    WHERE m.root_id = j.id AND m.parent_id IS NOT NULL
) AS tree
WHERE
    j.due_at IS NULL AND j.status IN ('SUCCESSFUL', 'DEAD', 'CANCELLED') AND j.parent_id IS NULL
    AND (
-- include: gone
    )
    AND tree.members = tree.ended
    AND NOT EXISTS (
        SELECT
        FROM durable_job AS m
        WHERE
            (m.id = j.id OR (m.root_id = j.id AND m.parent_id IS NOT NULL))
            AND (FALSE /* is pointed to */)
    )
