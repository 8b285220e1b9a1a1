DELETE FROM durable_attempt WHERE job_id = ANY(%(ids)s::uuid[]) RETURNING id
