DELETE FROM durable_deadletter WHERE job_id = ANY(%(ids)s::uuid[]) RETURNING id
