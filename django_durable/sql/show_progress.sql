UPDATE durable_job SET progress = %(progress)s::jsonb
WHERE id = %(id)s AND epoch = %(epoch)s AND status = 'RUNNING'
RETURNING cancel_requested_at IS NOT NULL
