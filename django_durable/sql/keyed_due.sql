-- Bring the first due jobs with keys of one priority, with what this worker may run of them.
SELECT
    pair.key_hash, pair.lane, pair.id, pair.due_at, pair.queue_name, budget.most,
    budget.most - budget.held AS room
FROM (
    SELECT j.key_hash, j.lane, j.id, j.due_at, j.queue_name, j.name, j.requires
    FROM durable_job AS j
    WHERE
        j.due_at IS NOT NULL AND j.key_hash IS NOT NULL
        AND j.priority = %(level)s::smallint
        AND j.due_at <= statement_timestamp() + %(offset)s::interval
        AND j.id <> ALL(%(shunned)s::uuid[])
    ORDER BY j.due_at, j.id
    LIMIT %(probe)s
) AS pair
CROSS JOIN LATERAL (
-- include: keyed_budget
) AS budget
