-- Lock the job of a run whose claim stands.
SELECT cancel_requested_at IS NOT NULL, statement_timestamp() + %(offset)s::interval
FROM durable_job
WHERE id = %(id)s AND epoch = %(epoch)s AND status = 'RUNNING'
FOR NO KEY UPDATE
