DELETE FROM durable_signal WHERE job_id = ANY(%(ids)s::uuid[])
