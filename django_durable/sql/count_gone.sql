-- Count the jobs whose time is over.
SELECT count(*)
FROM durable_job
WHERE due_at IS NULL AND kept_until <= statement_timestamp() + %(offset)s::interval
    AND status IN ('SUCCESSFUL', 'DEAD', 'CANCELLED')
