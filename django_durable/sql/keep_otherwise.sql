-- Keep locked dead roots for as long as their type says here; for how long that is, the settling of
-- their trees makes out. What is kept for ever now has no time; what somebody holds is left.
WITH changed AS (
    UPDATE durable_job AS j SET
        kept_until = NULL,
        keep_for =
-- include: keep_dead
    WHERE j.id = ANY(%(ids)s::uuid[]) AND j.status = 'DEAD' AND j.parent_id IS NULL
    RETURNING j.id, j.keep_for
),
members AS MATERIALIZED (
    SELECT m.id
    FROM durable_job AS m
    INNER JOIN changed ON m.root_id = ANY(ARRAY[changed.id])
    WHERE m.parent_id IS NOT NULL AND m.kept_until IS NOT NULL AND changed.keep_for IS NULL
    FOR NO KEY UPDATE OF m SKIP LOCKED
)
UPDATE durable_job AS m SET kept_until = NULL
FROM members
WHERE m.id = ANY(ARRAY[members.id])
