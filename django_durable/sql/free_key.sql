-- Take a job's idempotency key away; it goes on without one.
UPDATE durable_job SET idempotency_key = NULL WHERE id = %(id)s
