-- Nobody waits for what has ended, and what has ended waits for nobody.
DELETE FROM durable_await WHERE awaited_id = ANY(%(ids)s::uuid[]) OR waiter_id = ANY(%(ids)s::uuid[])
