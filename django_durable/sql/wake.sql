-- Make the locked waiters that wait for nothing any more READY, back in their old place.
UPDATE durable_job AS j SET status = 'READY', due_at = j.run_after
WHERE
    j.id = ANY(%(waiters)s::uuid[]) AND j.status = 'WAITING'
    AND NOT EXISTS (SELECT FROM durable_await AS a WHERE a.waiter_id = j.id)
RETURNING j.id, j.queue_name
