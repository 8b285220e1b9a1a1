-- Lock the awaited jobs, so that none of them ends between the look and the park.
SELECT id FROM durable_job WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id DESC FOR NO KEY UPDATE
