DELETE FROM durable_hold
WHERE awaited_id = ANY(%(ids)s::uuid[]) OR waiter_id = ANY(%(ids)s::uuid[])
