-- Nobody waits for what has ended, and what has ended waits for nobody.
WITH freed AS (
    DELETE FROM durable_await
    WHERE awaited_id = ANY(%(ids)s::uuid[]) OR waiter_id = ANY(%(ids)s::uuid[])
    RETURNING waiter_id
)
SELECT DISTINCT waiter_id FROM freed WHERE waiter_id <> ALL(%(ids)s::uuid[])
