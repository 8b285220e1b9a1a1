-- Count the jobs that are not due for a claim, by status: an index walk each, that stops at the
-- limit.
SELECT wanted.status, counted.number
FROM unnest(%(statuses)s::text[]) AS wanted (status)
CROSS JOIN LATERAL (
    SELECT count(*) AS number
    FROM (
        SELECT
        FROM durable_job AS j
        WHERE
            j.status = wanted.status AND j.due_at IS NULL
            AND NOT (
-- include: gone
            )
        LIMIT %(reach)s::bigint
    ) AS part
) AS counted
