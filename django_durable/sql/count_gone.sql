-- Count the jobs whose time is over.
SELECT count(*)
FROM durable_job AS j
WHERE j.due_at IS NULL AND j.status IN ('SUCCESSFUL', 'DEAD', 'CANCELLED') AND (
-- include: gone
)
