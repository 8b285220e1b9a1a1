-- Lock the other members of the trees, as far as they have ended and nobody holds them, tree by
-- tree and up to a limit.
SELECT tree.root_id, member.id
FROM unnest(%(roots)s::uuid[]) AS tree (root_id)
CROSS JOIN LATERAL (
    SELECT m.id
    FROM durable_job AS m
    WHERE m.root_id = tree.root_id AND m.parent_id IS NOT NULL AND m.finished_at IS NOT NULL
    LIMIT %(limit)s::bigint
    FOR UPDATE SKIP LOCKED
) AS member
LIMIT %(limit)s::bigint
