-- Record results, each guarded by its claim; lone jobs only, or (alone = false) all.
WITH done AS MATERIALIZED (
    SELECT j.id, d.result, d.keep
    FROM unnest(
        %(ids)s::uuid[], %(epochs)s::bigint[], %(results)s::text[], %(keeps)s::float8[]
    ) AS d (id, epoch, result, keep)
    INNER JOIN durable_job AS j ON d.id = j.id
    WHERE j.epoch = d.epoch AND j.status = 'RUNNING' AND (NOT %(alone)s OR NOT j.awaited)
    ORDER BY j.id DESC
    FOR NO KEY UPDATE OF j
)
UPDATE durable_job AS j SET
    status = 'SUCCESSFUL',
    return_value = done.result,
    finished_at = statement_timestamp() + %(offset)s::interval,
    kept_until = CASE WHEN j.parent_id IS NULL
        THEN statement_timestamp() + %(offset)s::interval + make_interval(secs => done.keep) END,
    keep_for = CASE WHEN j.awaited AND j.parent_id IS NULL
        THEN make_interval(secs => done.keep) END,
    args = CASE WHEN %(drop)s THEN '[]' ELSE j.args END,
    kwargs = CASE WHEN %(drop)s THEN '{}' ELSE j.kwargs END,
    lease_until = NULL, claimer = NULL, key_held = FALSE, resumed = FALSE
FROM done
WHERE j.id = done.id
RETURNING j.id, j.finished_at
