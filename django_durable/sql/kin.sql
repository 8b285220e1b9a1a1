-- A job, or that of a dead letter, and all whose undo job would take back what it has a copy of: what
-- its checkpoints were forked from, and the replays of those.
WITH RECURSIVE kin AS (
    SELECT COALESCE(
        %(job)s::uuid, (SELECT job_id FROM durable_deadletter WHERE id = %(letter)s::bigint)
    ) AS id
    UNION
    SELECT next.id
    FROM kin
    CROSS JOIN LATERAL (
        SELECT o.forked_from AS id
        FROM durable_job AS o
        WHERE o.id = kin.id AND o.forked_from IS NOT NULL
        UNION ALL
        SELECT d.replayed_as_id
        FROM durable_deadletter AS d
        WHERE d.job_id = kin.id AND d.replayed_as_id IS NOT NULL
    ) AS next
)
SELECT id FROM durable_job
-- The ids by themselves, since no plan may read what else there is.
WHERE id = ANY(ARRAY(SELECT id FROM kin))
