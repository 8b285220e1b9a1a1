-- Insert the undo job of each dead or cancelled job that has something to take back. Nothing undoes
-- an undo job, also where its compensations could be taken back themselves.
INSERT INTO durable_job (
    id, root_id, parent_id, depth, awaited, name, queue_name, requires, priority, args, kwargs,
    metadata, options, max_attempts, enqueued_at, run_after, due_at, concurrency_key
)
SELECT
    ids.new, j.root_id, j.id, j.depth + 1, TRUE, j.name, j.queue_name, j.requires, j.priority, '[]',
    '{}', jsonb_build_object('undo', j.id::text),
    -- Whatever is late, what has been done is taken back; also where somebody has written options
    -- that nobody can read.
    CASE jsonb_typeof(j.options) WHEN 'object' THEN j.options - 'start_within' ELSE '{}' END,
    j.max_attempts, v.now, v.now, v.now,
    j.concurrency_key
FROM unnest(%(ended)s::uuid[], %(new)s::uuid[]) AS ids (old, new)
INNER JOIN durable_job AS j ON j.id = ANY(ARRAY[ids.old])
CROSS JOIN (SELECT statement_timestamp() + %(offset)s::interval AS now) AS v
WHERE
    j.status IN ('DEAD', 'CANCELLED') AND NOT j.metadata ? 'undo'
    AND EXISTS (
        SELECT FROM durable_step AS s
        WHERE
            s.job_id = ANY(ARRAY[j.id]) AND s.undo_name IS NOT NULL AND s.status = 'succeeded'
            AND NOT s.compensated
    )
RETURNING queue_name
