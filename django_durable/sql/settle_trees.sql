-- Say of trees whose locked roots these are until when they are kept: from the end of the last of
-- all their jobs on, for as long as the root's end has said. A statement of its own, whose snapshot
-- is younger than the locks. A member that somebody holds just now stays as it is, rather than
-- being waited for; settle_late.sql comes to it, and it is deleted with its root all the same.
WITH settled AS (
    UPDATE durable_job AS r SET
        kept_until = CASE
            WHEN NOT EXISTS (
                SELECT FROM durable_job AS m
                WHERE m.root_id = r.id AND m.parent_id IS NOT NULL AND m.finished_at IS NULL
            ) THEN r.keep_for + GREATEST(
                r.finished_at,
                (
                    SELECT max(m.finished_at)
                    FROM durable_job AS m
                    WHERE m.root_id = r.id AND m.parent_id IS NOT NULL
                )
            )
        END
    WHERE
        r.id = ANY(%(roots)s::uuid[]) AND r.finished_at IS NOT NULL
        -- One that ended alone has its time already.
        AND (r.keep_for IS NOT NULL OR r.kept_until IS NULL)
    RETURNING r.id, r.kept_until
),
members AS MATERIALIZED (
    SELECT m.id, settled.kept_until
    FROM durable_job AS m
    INNER JOIN settled ON m.root_id = ANY(ARRAY[settled.id])
    WHERE m.parent_id IS NOT NULL AND settled.kept_until IS NOT NULL
    FOR NO KEY UPDATE OF m SKIP LOCKED
)
UPDATE durable_job AS m SET kept_until = members.kept_until
FROM members
WHERE m.id = ANY(ARRAY[members.id])
