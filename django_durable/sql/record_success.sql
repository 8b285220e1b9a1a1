-- Record results, each guarded by its claim; lone jobs only, or (alone = false) all, which are locked
-- already. Lone ones are locked as they are written, in the one order of all verbs.
-- Which were written is told only where not all were.
WITH done AS (
    UPDATE durable_job AS j SET
        status = 'SUCCESSFUL',
        return_value = d.result,
        finished_at = statement_timestamp() + %(offset)s::interval,
        kept_until = CASE WHEN j.parent_id IS NULL
            THEN statement_timestamp() + %(offset)s::interval + make_interval(secs => d.keep) END,
        keep_for = CASE WHEN j.awaited AND j.parent_id IS NULL
            THEN make_interval(secs => d.keep) END,
        args = CASE WHEN %(drop)s THEN '[]' ELSE j.args END,
        kwargs = CASE WHEN %(drop)s THEN '{}' ELSE j.kwargs END,
        -- Said, since no arguments may also be what it was called with.
        options = CASE WHEN %(drop)s AND (j.args <> '[]' OR j.kwargs <> '{}')
            THEN j.options || '{"dropped": true}' ELSE j.options END,
        lease_until = NULL, claimer = NULL, key_held = FALSE, resumed = FALSE
    FROM (
        SELECT *
        FROM unnest(
            %(ids)s::uuid[], %(epochs)s::bigint[], %(results)s::text[], %(keeps)s::float8[]
        ) WITH ORDINALITY AS given (id, epoch, result, keep, place)
        ORDER BY id DESC
    ) AS d
    WHERE
        j.id = ANY(ARRAY[d.id]) AND j.epoch = d.epoch AND j.status = 'RUNNING'
        AND (NOT %(alone)s OR NOT j.awaited)
    RETURNING d.place
)
SELECT count(*), CASE WHEN count(*) < cardinality(%(ids)s::uuid[]) THEN array_agg(place) END FROM done
