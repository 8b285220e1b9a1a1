-- Name the dead roots of these letters that are kept for another time than their type says here.
SELECT j.id
FROM durable_deadletter AS d
INNER JOIN durable_job AS j ON j.id = ANY(ARRAY[d.job_id])
WHERE
    d.id = ANY(%(letters)s::bigint[]) AND j.status = 'DEAD' AND j.parent_id IS NULL
    AND COALESCE(j.kept_until > statement_timestamp() + %(offset)s::interval, TRUE)
    AND j.keep_for IS DISTINCT FROM
-- include: keep_dead
