-- Bring due jobs with keys of one priority: the first ones, if these are all; else walk the pairs
-- of key and lane from where the last claim stopped, one index seek for each, and bring the first
-- due jobs of those that have room and that this worker may run. Few of many keys may have
-- anything due, and one key may hold up any number of due jobs: either look alone would be long.
-- Columns are compared as rows for the reason that peek.sql gives.
WITH RECURSIVE due AS MATERIALIZED (
    SELECT j.key_hash, j.lane, j.id, j.due_at, j.queue_name, j.name, j.requires, j.resumed
    FROM durable_job AS j
    WHERE
        j.due_at IS NOT NULL AND j.concurrency_key IS NOT NULL AND NOT j.key_held
        AND (j.priority, j.due_at) >= (%(level)s::smallint, '-infinity'::timestamptz)
        AND (j.priority, j.due_at)
        <= (%(level)s::smallint, statement_timestamp() + %(offset)s::interval)
        AND j.id <> ALL(%(shunned)s::uuid[])
    ORDER BY j.priority, j.due_at, j.id
    LIMIT %(probe)s
),
crowd AS MATERIALIZED (SELECT count(*) >= %(probe)s AS is_big FROM due),
seek AS (
    (
        SELECT 1 AS step, j.key_hash, j.lane, j.queue_name, j.name, j.requires, j.resumed
        FROM durable_job AS j
        WHERE
            (SELECT is_big FROM crowd)
            AND j.due_at IS NOT NULL AND j.key_hash IS NOT NULL AND NOT j.key_held
            AND (j.priority, j.key_hash, j.lane)
            > (%(level)s::smallint, %(after_key)s::bigint, %(after_lane)s::bigint)
            AND (j.priority, j.key_hash, j.lane)
            <= (%(level)s::smallint, %(until_key)s::bigint, %(until_lane)s::bigint)
        ORDER BY j.priority, j.key_hash, j.lane
        LIMIT 1
    )
    UNION ALL
    SELECT seek.step + 1, next.*
    FROM seek
    CROSS JOIN LATERAL (
        SELECT j.key_hash, j.lane, j.queue_name, j.name, j.requires, j.resumed
        FROM durable_job AS j
        WHERE
            j.due_at IS NOT NULL AND j.key_hash IS NOT NULL AND NOT j.key_held
            AND (j.priority, j.key_hash, j.lane)
            > (%(level)s::smallint, seek.key_hash, seek.lane)
            AND (j.priority, j.key_hash, j.lane)
            <= (%(level)s::smallint, %(until_key)s::bigint, %(until_lane)s::bigint)
        ORDER BY j.priority, j.key_hash, j.lane
        LIMIT 1
    ) AS next
    WHERE seek.step < %(pairs)s
)
SELECT
    0 AS step, pair.key_hash, pair.lane, pair.id,
    -- No moment that Python can't hold: no claim would succeed.
    GREATEST(pair.due_at, '0001-01-02'::timestamptz) AS due_at, pair.queue_name, budget.most,
    budget.room, pair.name, pair.resumed, budget.is_paced, budget.opens_in
FROM due AS pair
CROSS JOIN LATERAL (
-- include: keyed_budget
) AS budget
WHERE NOT (SELECT is_big FROM crowd)
UNION ALL
SELECT
    pair.step, pair.key_hash, pair.lane, head.id,
    CASE WHEN head.id IS NOT NULL THEN GREATEST(head.due_at, '0001-01-02'::timestamptz) END,
    pair.queue_name, budget.most,
    budget.room, pair.name, pair.resumed, budget.is_paced, budget.opens_in
FROM seek AS pair
CROSS JOIN LATERAL (
-- include: keyed_budget
) AS budget
LEFT JOIN LATERAL (
    SELECT first.id, first.due_at
    FROM (
        SELECT j.id, j.due_at
        FROM durable_job AS j
        WHERE
            j.due_at IS NOT NULL AND j.key_hash IS NOT NULL AND NOT j.key_held
            AND (j.priority, j.key_hash, j.lane, j.due_at)
            >= (%(level)s::smallint, pair.key_hash, pair.lane, '-infinity'::timestamptz)
            AND (j.priority, j.key_hash, j.lane, j.due_at)
            <= (
                %(level)s::smallint, pair.key_hash, pair.lane,
                statement_timestamp() + %(offset)s::interval
            )
            AND j.id <> ALL(%(shunned)s::uuid[])
        ORDER BY j.priority, j.key_hash, j.lane, j.due_at, j.id
        -- Which the planner can read, unlike the other one.
        LIMIT %(wanted)s
    ) AS first
    ORDER BY first.due_at, first.id
    -- Of one that is held back a single job, so that it is known to be due, and before others.
    LIMIT CASE
        WHEN budget.is_paced THEN 1 WHEN budget.most IS NULL THEN 0 ELSE GREATEST(budget.room, 1)
    END
) AS head ON TRUE
WHERE head.id IS NOT NULL OR pair.step = %(pairs)s
UNION ALL
-- So that the caller knows which of the two it was, even where nothing was found.
SELECT -1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM crowd
WHERE is_big
