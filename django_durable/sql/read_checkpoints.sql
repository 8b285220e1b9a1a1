-- Read the checkpoints of jobs that were just claimed, all in one query.
SELECT
    job_id, kind, name, ordinal, status, value, error_class, message, wake_at, child_id, tries, id
FROM durable_step
WHERE job_id = ANY(%(ids)s::uuid[])
