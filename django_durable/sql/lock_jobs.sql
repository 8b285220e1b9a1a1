-- Lock the jobs in the one order; see lock_with_waiters.sql.
SELECT id FROM durable_job WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id DESC FOR NO KEY UPDATE
