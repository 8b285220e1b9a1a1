-- Name those of the locked jobs whose trees are kept for a live job. A statement of its own, whose
-- snapshot is younger than the locks.
SELECT j.id
FROM durable_job AS j
WHERE j.id = ANY(%(ids)s::uuid[]) AND
-- include: held
