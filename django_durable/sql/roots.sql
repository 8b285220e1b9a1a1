-- Name the trees of the listed jobs.
SELECT DISTINCT root_id FROM durable_job WHERE id = ANY(%(ids)s::uuid[])
