-- Those of the jobs whose end would have to wait: somebody has locked their row or, with
-- company, that of what waits for them, or the root of their tree. Nobody is waited for here.
WITH company AS MATERIALIZED (
    SELECT own.id AS job_id, own.id AS needed FROM unnest(%(ids)s::uuid[]) AS own (id)
    UNION ALL
    SELECT awaited_id, waiter_id FROM durable_await
    WHERE awaited_id = ANY(%(ids)s::uuid[]) AND %(company)s
    UNION ALL
    SELECT id, root_id FROM durable_job
    WHERE id = ANY(%(ids)s::uuid[]) AND awaited AND %(company)s
),
existing AS MATERIALIZED (
    SELECT id FROM durable_job WHERE id = ANY(ARRAY(SELECT needed FROM company))
),
free AS MATERIALIZED (
    SELECT id FROM durable_job WHERE id = ANY(ARRAY(SELECT needed FROM company))
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT DISTINCT job_id
FROM company
WHERE needed IN (SELECT id FROM existing) AND needed NOT IN (SELECT id FROM free)
