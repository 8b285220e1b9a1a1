-- The steps that the compensations `done` have taken back, marked as such; and with each all that
-- replays and forks have copied of it. A copy has the times of what it is a copy of.
taken_back AS MATERIALIZED (
    SELECT s.job_id, s.name, s.started_at, s.finished_at
    FROM done
    INNER JOIN durable_job AS u ON u.id = ANY(ARRAY[done.job_id])
    INNER JOIN durable_step AS s
        ON s.job_id = (u.metadata ->> 'undo')::uuid AND s.kind = 'step' AND done.name = s.name
    WHERE s.undo_name IS NOT NULL AND NOT s.compensated
),
kin AS (
    SELECT job_id AS owner, job_id AS id FROM taken_back
    UNION
    SELECT kin.owner, next.id
    FROM kin
    CROSS JOIN LATERAL (
        SELECT d.job_id AS id FROM durable_deadletter AS d WHERE d.replayed_as_id = kin.id
        UNION ALL
        SELECT d.replayed_as_id
        FROM durable_deadletter AS d
        WHERE d.job_id = kin.id AND d.replayed_as_id IS NOT NULL
        UNION ALL
        SELECT j.id FROM durable_job AS j WHERE j.forked_from = kin.id
    ) AS next
),
marked AS (
    UPDATE durable_step SET compensated = TRUE
    -- The ids by themselves, since no plan may read what else there is.
    WHERE id = ANY(ARRAY(
        SELECT copied.id
        FROM taken_back AS t
        INNER JOIN kin ON t.job_id = kin.owner
        CROSS JOIN LATERAL (
            SELECT s.id
            FROM durable_step AS s
            WHERE
                s.job_id = kin.id AND s.kind = 'step' AND s.name = t.name
                AND s.started_at = t.started_at AND s.finished_at = t.finished_at
                AND NOT s.compensated
            OFFSET 0
        ) AS copied
    ))
)
