DELETE FROM durable_job WHERE id = ANY(%(ids)s::uuid[]) RETURNING id
