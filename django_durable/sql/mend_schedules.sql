-- Let schedules fire again that are broken for this reason only. A row that somebody holds waits for
-- the next look.
UPDATE durable_schedule SET broken = ''
WHERE id IN (
    SELECT id
    FROM durable_schedule
    WHERE broken <> '' AND job_name = ANY(%(names)s::text[]) AND broken = %(why)s
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING id
