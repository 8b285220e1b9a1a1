SELECT payload FROM durable_signal WHERE job_id = %(id)s AND name = %(name)s
