-- Tell how the listed jobs stand, to judge a write that found no row.
SELECT id, epoch, status, cancel_requested_at IS NOT NULL FROM durable_job WHERE id = ANY(%(ids)s::uuid[])
