-- Which undo job of this job lives?
SELECT
-- include: live_undo
FROM durable_job AS j
WHERE j.id = %(id)s
