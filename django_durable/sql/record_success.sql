-- Record results, each guarded by its claim; lone jobs only, or (alone = false) all, which are locked
-- already. Lone ones are locked as they are written, in the one order of all verbs.
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
FROM (
    SELECT *
    FROM unnest(
        %(ids)s::uuid[], %(epochs)s::bigint[], %(results)s::text[], %(keeps)s::float8[]
    ) WITH ORDINALITY AS d (id, epoch, result, keep, place)
    ORDER BY id DESC
) AS done
WHERE
    j.id = done.id AND j.epoch = done.epoch AND j.status = 'RUNNING'
    AND (NOT %(alone)s OR NOT j.awaited)
RETURNING done.place
