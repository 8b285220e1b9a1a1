-- Record checkpoints, each guarded by the claim of its run. The job is locked, so that no claim,
-- rescue or cancel that comes meanwhile is overlooked.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(%(checkpoints)s::jsonb) AS c (
        job uuid, epoch bigint, kind text, name text, ordinal int, status text, value text,
        error_class text, message text, took float8, wake_at timestamptz, delay float8, child uuid,
        tries int, undo_name text, undo_call text
    )
),
mine AS MATERIALIZED (
    SELECT j.id, j.epoch, j.cancel_requested_at IS NOT NULL AS cancel_requested
    FROM durable_job AS j
    WHERE
        -- The ids by themselves, since no plan may read what else there is.
        j.id = ANY(ARRAY(SELECT job FROM given))
        AND (j.id, j.epoch) IN (SELECT job, epoch FROM given) AND j.status = 'RUNNING'
    ORDER BY j.id DESC
    FOR NO KEY UPDATE
),
written AS (
-- include: insert_checkpoint
    SELECT
        mine.id, g.kind, g.name, g.ordinal, g.status, g.value, COALESCE(g.error_class, ''),
        COALESCE(g.message, ''), v.now - make_interval(secs => COALESCE(g.took, 0)),
        CASE WHEN g.status <> 'pending' THEN v.now END,
        COALESCE(g.wake_at, v.now + make_interval(secs => g.delay)),
        COALESCE(g.tries, 0), g.child, g.undo_name, g.undo_call
    FROM given AS g
    INNER JOIN mine ON g.job = mine.id AND g.epoch = mine.epoch
    CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
-- include: complete_pending
    RETURNING s.job_id, s.kind, s.name, s.wake_at
)
SELECT
    mine.id, mine.epoch, mine.cancel_requested, written.kind, written.name, written.wake_at,
    statement_timestamp() + %(offset)s::interval
FROM mine
LEFT JOIN written ON mine.id = written.job_id
