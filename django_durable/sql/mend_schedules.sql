UPDATE durable_schedule SET broken = ''
WHERE broken <> '' AND job_name = ANY(%(names)s::text[]) AND broken = %(why)s
RETURNING id
