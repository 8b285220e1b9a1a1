-- The run of one checkpoint, if its claim stands, and the checkpoint that is written.
mine AS MATERIALIZED (
    SELECT j.id, j.cancel_requested_at IS NOT NULL AS cancel_requested
    FROM durable_job AS j
    WHERE j.id = %(job)s::uuid AND j.epoch = %(epoch)s::bigint AND j.status = 'RUNNING'
    FOR NO KEY UPDATE
),
written AS (
-- include: insert_checkpoint
    SELECT
        mine.id, %(kind)s::text, %(name)s::text, %(ordinal)s::int, %(status)s::text,
        %(value)s::text, %(error_class)s::text, %(message)s::text,
        v.now - make_interval(secs => %(took)s::float8),
        CASE WHEN %(status)s::text <> 'pending' THEN v.now END,
        COALESCE(%(wake_at)s::timestamptz, v.now + make_interval(secs => %(delay)s::float8)),
        %(tries)s::int, %(child)s::uuid, %(undo_name)s::text, %(undo_call)s::text
    FROM mine
    CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
-- include: complete_pending
    RETURNING s.wake_at, TRUE AS is_new
)
