-- Wake a job that is parked for just this signal; back in its old place.
UPDATE durable_job SET status = 'READY', due_at = run_after, waits_for = NULL
WHERE id = %(id)s AND status = 'WAITING' AND waits_for = %(name)s
RETURNING queue_name
