SELECT finished_at IS NOT NULL FROM durable_job WHERE id = %(id)s FOR NO KEY UPDATE
