DELETE FROM durable_step WHERE job_id = ANY(%(ids)s::uuid[]) RETURNING id
