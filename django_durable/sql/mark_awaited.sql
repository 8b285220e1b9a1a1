-- Make their completion look for waiters.
UPDATE durable_job SET awaited = TRUE WHERE id = ANY(%(ids)s::uuid[]) AND NOT awaited
