-- Lock roots whose time is over, the longest gone first; what somebody holds is left for later.
SELECT id, kept_until
FROM durable_job
WHERE
    status = %(status)s AND due_at IS NULL AND parent_id IS NULL
    AND kept_until <= statement_timestamp() + %(offset)s::interval
    AND kept_until >= %(after)s::timestamptz
    AND id <> ALL(%(passed)s::uuid[])
    AND (%(only)s::uuid[] IS NULL OR id = ANY(%(only)s::uuid[]))
ORDER BY kept_until
LIMIT %(limit)s
FOR UPDATE SKIP LOCKED
