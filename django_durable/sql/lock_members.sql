-- Lock the other members of the trees, as far as nobody holds them.
SELECT id
FROM durable_job
WHERE root_id = ANY(%(roots)s::uuid[]) AND parent_id IS NOT NULL
FOR UPDATE SKIP LOCKED
